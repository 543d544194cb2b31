"""A real vocabulary and template, and events as the engine makes them from given tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llama_py.chat.conversation import AudioPart, ImagePart
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.templates.template import ChatTemplate
from llama_py.core.vocab import Vocab
from llama_py.engine.generation import ReplyText
from llama_py.engine.media import Medium
from llama_py.engine.request import Event, FinishEvent, Record, TokenEvent, TokenLogprobs
from llama_py.errors import ParameterError
from llama_py.params import RANDOM_SEED


@dataclass
class Context:
    """What a loaded model offers to the parsers, without one."""

    vocab: Vocab
    template: ChatTemplate
    metadata: dict[str, str] = field(default_factory=dict)
    seed: int = RANDOM_SEED
    model_path: str = "tiny.gguf"
    last_n_tokens_size: int = 64
    spm_infill: bool = False
    sampling: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    sees: bool = False
    hears: bool = False
    max_media: int = 8
    rendered: int = 0
    asked: ChatRequest | None = None

    def medium(self, part: ImagePart | AudioPart, where: str) -> Medium:
        raise ParameterError(f"{where}: nothing is seen or heard here")

    def render_chat(self, request: ChatRequest) -> RenderedChat:
        self.rendered += 1
        self.asked = request
        return self.template.render(request)


OpenVocab = Callable[..., Vocab]


TEMPLATE = """{%- if tools %}{{- '<|im_start|>system\\nTools: ' + (tools | tojson) + '
To call: <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>.<|im_end|>\\n' }}{% endif %}
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""


def logprobs_of(token: int, k: int) -> TokenLogprobs:
    """Some log-probabilities, different for every token."""
    ids = np.arange(token, token + k, dtype=np.int32) % 500
    return TokenLogprobs(-0.5 - token / 1000, ids, -0.25 * np.arange(1, k + 1, dtype=np.float32))


def play(
    vocab: Vocab, record: Record, tokens: Sequence[int], error: BaseException | None = None
) -> Iterator[Event]:
    """The events of a request whose model "samples" these tokens, as the engine makes them."""
    request = record.request
    wanted, text = request.generation.logprobs, ReplyText(request.generation.stop)
    record.tokens = list(request.prompt.tokens or vocab.tokenize(request.prompt.text or b""))
    if request.generation.prompt_logprobs:
        record.prompt_logprobs = [logprobs_of(t, wanted or 0) for t in record.tokens[1:]]
    for token in tokens:
        record.generated.append(token)
        if vocab.is_eog(token):
            yield FinishEvent("stop", text.finish())
            return
        shown = request.echo_special or token in request.visible
        piece = vocab.piece(token) if shown else vocab.plain_piece(token)
        entry = None if wanted is None else logprobs_of(token, wanted)
        yield TokenEvent(token, text.feed(piece), entry)
        if text.stopped_by is not None:
            yield FinishEvent("stop", "", text.stopped_by)
            return
    reason = "length" if error is None else "error"
    yield FinishEvent(reason, text.finish(), error=error)


def drive(
    vocab: Vocab, call: Any, replies: Sequence[Sequence[int]], error: BaseException | None = None
) -> tuple[list[Any], Any]:
    """All chunks of a call, and its response. The choices take turns."""
    records = [Record(request) for request in call.requests]
    encoder = call.encoder(records)
    chunks = list(encoder.open())
    running = [
        (record.request.choice, play(vocab, record, tokens, error))
        for record, tokens in zip(records, replies, strict=True)
    ]
    while running:
        for entry in list(running):
            choice, events = entry
            event = next(events, None)
            if event is None:
                running.remove(entry)
            else:
                chunks += encoder.feed(choice, event)
    return chunks + encoder.close(), encoder.response()
