"""``parse_completion``: the arguments of ``create_completion`` to engine requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from typing_extensions import Unpack

from llama_py.chat.vocab import VocabLike
from llama_py.dialects.context import CallContext
from llama_py.dialects.infill import infill_tokens
from llama_py.dialects.openai.encode import CompletionEncoder, ResponseHead
from llama_py.dialects.requests import (
    most_tokens,
    read_generation,
    read_grammar,
    read_request,
    read_sampling,
    requests_of,
)
from llama_py.engine.request import GenerationRequest, Prompt, Record
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.options import COMPLETION, MAX_CHOICES, CompletionOptions
from llama_py.options.checks import check_number, whole_text
from llama_py.params import GenerationParams

if TYPE_CHECKING:
    from llama_py.dialects.media_parts import MarkedPrompt

    #: A prompt as it was given.
    _Given: TypeAlias = str | list[int] | MarkedPrompt

__all__ = ["CompletionCall", "parse_completion"]


@dataclass(slots=True)
class CompletionCall:
    """A checked call of ``create_completion``.

    Attributes:
        requests: one for each choice to generate, ``request.choice`` counting them.
        stream: whether the caller wants chunks.
    """

    requests: list[GenerationRequest]
    head: ResponseHead
    vocab: VocabLike
    per_prompt: int = 1
    keep: int = 1
    echoes: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    logprobs: bool = False

    @property
    def stream(self) -> bool:
        return self.head.stream

    def encoder(self, records: Sequence[Record]) -> CompletionEncoder:
        """A new encoder for this call.

        Args:
            records: what is known of each of its requests.
        """
        return CompletionEncoder(
            self.head,
            records,
            self.vocab,
            per_prompt=self.per_prompt,
            keep=self.keep,
            echoes=self.echoes,
            offsets=self.offsets,
            logprobs=self.logprobs,
        )


def parse_completion(
    context: CallContext,
    prompt: Any,
    *,
    stream: bool | None = False,
    zero_counts: bool = False,
    **given: Unpack[CompletionOptions],
) -> CompletionCall:
    """Check the arguments of ``create_completion``.

    Args:
        prompt: a text, a list of token ids, an object ``{"prompt_string": ..., "multimodal_data":
            [BASE64, ...]}`` (pictures and sounds in place of the markers in the text), or a list
            of these.
        zero_counts: a ``max_tokens`` of 0 is a reply without tokens, as it is with ``echo``.

    Raises:
        ParameterError: an argument is wrong; the message names it and what is allowed.
        MediaError: a picture or sound cannot be used.
    """
    options = COMPLETION.read(given)
    head = ResponseHead.read(options, stream, context, "cmpl")
    prompts = _prompts(prompt, context)
    keep, per_prompt = _best_of(options, head.stream)
    wanted = options.get("logprobs")
    check_number("logprobs", wanted or 0, 0, context.vocab.n_tokens, integer=True)
    echo = bool(options.get("echo"))
    default = context.max_tokens or COMPLETION["max_tokens"].default(COMPLETION.function)
    most = options.get("max_tokens", default)
    generation = read_generation(
        options,
        context,
        max_tokens=most_tokens(most, zero_counts=zero_counts or echo),
        logprobs=0 if wanted is None and per_prompt > keep else wanted,
        prompt_logprobs=echo and wanted is not None,
    )
    sampling = read_sampling(COMPLETION, options, context, read_grammar(options, context))
    request = read_request(options, sampling, generation)
    shown = echo or wanted is not None
    texts = [_prompt_text(context, each) if shown else "" for each in prompts]
    return CompletionCall(
        requests_of(request, _engine_prompts(options, context, prompts, generation), per_prompt),
        head,
        context.vocab,
        per_prompt,
        keep,
        texts if echo else [""] * len(texts),
        [len(text) for text in texts],
        wanted is not None,
    )


def _best_of(options: CompletionOptions, stream: bool) -> tuple[int, int]:
    """How many choices to return and how many to generate, for each prompt."""
    n = options.get("n") or 1
    best_of = options.get("best_of") or n
    if best_of < n:
        raise ParameterError(f"best_of={best_of} contradicts n={n}; it must be at least n")
    if best_of > n and stream:
        raise ParameterError(
            f"best_of={best_of} with n={n} cannot be streamed: the best replies are known at the "
            "end; pass stream=False"
        )
    return n, best_of


def _prompts(prompt: Any, context: CallContext) -> list[_Given]:
    if isinstance(prompt, np.ndarray):
        prompt = prompt.tolist()
    if isinstance(prompt, Mapping):
        return [_one_prompt(prompt, context, "prompt")]
    if isinstance(prompt, str):
        prompt = [prompt]
    elif isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
        raise ParameterTypeError(
            f"prompt must be a text or a list of token ids, not {type(prompt).__name__}"
        )
    elif all(kind is not bool and issubclass(kind, Integral) for kind in {*map(type, prompt)}):
        prompt = [prompt]
    if len(prompt) > MAX_CHOICES:
        raise ParameterError(f"prompt has {len(prompt)} texts; at most {MAX_CHOICES} are allowed")
    return [_one_prompt(item, context, f"prompt[{i}]") for i, item in enumerate(prompt)]


def _one_prompt(item: Any, context: CallContext, where: str) -> _Given:
    if isinstance(item, Mapping):
        from llama_py.dialects.media_parts import read_marked_prompt  # rare, and much

        marked = read_marked_prompt(item, where)
        if marked is not None:
            return marked
        item = item.get("prompt_string")
    if isinstance(item, str):
        return whole_text(item, "prompt")
    if isinstance(item, bytes) or not isinstance(item, Sequence):
        raise ParameterTypeError(
            f"prompt must be a text or a list of token ids, and contains {shown(item)}"
        )
    # Of many tokens that are plain integers, it is enough to look at two.
    plain = {*map(type, item)} == {int}
    last = context.vocab.n_tokens - 1
    for token in (min(item), max(item)) if plain else item:
        check_number("prompt: token", token, 0, last, integer=True)
    return [int(token) for token in item]


def _prompt_text(context: CallContext, prompt: _Given) -> str:
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list):
        return prompt.text
    tokens = prompt[1:] if prompt[:1] == [context.vocab.bos] else prompt
    return context.vocab.detokenize(tokens, special=True).decode("utf-8", "replace")


def _engine_prompts(
    options: CompletionOptions,
    context: CallContext,
    prompts: list[_Given],
    generation: GenerationParams,
) -> list[Prompt]:
    suffix = options.get("suffix")
    texts = [prompt for prompt in prompts if isinstance(prompt, (str, list))]
    if len(texts) < len(prompts) and (suffix is not None or generation.prompt_logprobs):
        what = "echo with logprobs" if suffix is None else "suffix"
        raise ParameterError(f"{what} contradicts a prompt with multimodal_data: it is not text")
    if suffix is None:
        return [_plain_prompt(context, prompt) for prompt in prompts]
    if generation.prompt_logprobs:
        raise ParameterError("echo with logprobs contradicts suffix: an infill prompt is not text")
    return [Prompt(tokens=infill_tokens(context, prompt, suffix)) for prompt in texts]


def _plain_prompt(context: CallContext, prompt: _Given) -> Prompt:
    if not isinstance(prompt, (str, list)):
        from llama_py.dialects.media_parts import prompt_with_media

        return prompt_with_media(context, prompt)
    if not prompt and not (prompt == "" and context.vocab.add_bos):
        if context.vocab.bos < 0:
            raise ParameterError("prompt is empty, and this model has no BOS token to begin with")
        return Prompt(tokens=[context.vocab.bos])
    if isinstance(prompt, str):
        return Prompt(text=prompt.encode())
    return Prompt(tokens=prompt)
