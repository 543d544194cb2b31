"""``Calls``: the arguments of a call, checked and rendered. Nothing is evaluated here."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_py.api.call import Call, LastCalls, Outcome
from llama_py.api.loading import LoadedModel
from llama_py.api.overflow import MessageSizes, OverflowReport, fit
from llama_py.api.rendering import ChatSettings, ModelContext, Rendering
from llama_py.core.vocab import Vocab
from llama_py.dialects.openai.completions import CompletionCall, parse_completion
from llama_py.engine.request import GenerationRequest, Prompt
from llama_py.errors import ContextOverflowError, LlamaError
from llama_py.options.values import read_policy

# What only chats need is imported with the first of them: ``api/rendering.py``.
if TYPE_CHECKING:
    from llama_py.chat.rendered import RenderedChat
    from llama_py.dialects.openai.chat import ChatCall

__all__ = ["Calls"]

Messages = Sequence[Mapping[str, Any]]


class Calls:
    """Parses the calls of one model, for both faces, and measures prompts."""

    def __init__(
        self, loaded: LoadedModel, settings: ChatSettings, rendering: Rendering, last: LastCalls
    ) -> None:
        self._loaded = loaded
        self._settings = settings
        self._last = last
        self._rendering = rendering
        self._sizes = MessageSizes(partial(_count, loaded.model.vocab))

    def completion(
        self, prompt: str | Sequence[int], stream: bool, options: Mapping[str, Any]
    ) -> Call:
        """A call of ``create_completion``."""
        vocab = self._loaded.model.vocab
        if isinstance(prompt, str) and vocab.add_bos and vocab.bos >= 0:
            bos = vocab.piece(vocab.bos).decode("utf-8", "replace")
            if bos and prompt.startswith(bos):  # llama-cpp-python warns of it as well
                warnings.warn(
                    f"the prompt begins with {bos!r}, which this model's prompts get in any case, "
                    "so that it is there twice, and replies are worse; leave it out of the text",
                    RuntimeWarning,
                    stacklevel=3,  # the caller of create_completion
                )
        parsed = parse_completion(self._rendering.call_context(), prompt, stream=stream, **options)
        return self._call(parsed, None)

    def chat(self, messages: Messages, stream: bool, options: Mapping[str, Any]) -> Call:
        """A call of ``create_chat_completion``, shortened by the overflow policy."""
        from llama_py.dialects.openai.chat import parse_chat

        options = dict(options)
        policy = options.pop("overflow", self._settings.overflow)
        if policy is not None:
            read_policy("overflow", policy)
        context = self._rendering.call_context()

        def parse(some: Messages) -> ChatCall:
            return parse_chat(context, some, stream=stream, **options)

        if policy is None or not all(isinstance(message, Mapping) for message in messages):
            return self._call(parse(messages), None)  # what is not a message, it says
        tried: dict[int, ChatCall] = {}  # by how many messages were left

        def count(some: Messages) -> int:
            call = tried[len(some)] = parse(some)
            return len(self.tokens_of(call.requests[0].prompt))

        cells = {id(each): _cells(each, place, context) for place, each in enumerate(messages)}
        tools = options.get("tools") or options.get("functions")
        kept, dropped = fit(
            count,
            self._loaded.facts.limit,
            policy,
            messages,
            size=lambda each: self._sizes.of(each) + cells.get(id(each), 0),
            fixed=self._sizes.of_json(tools) if tools else 0,
        )
        return self._call(tried.get(len(kept)) or parse(kept), dropped)

    def _call(self, parsed: CompletionCall | ChatCall, dropped: OverflowReport | None) -> Call:
        return Call(parsed, Outcome(self._last, dropped))

    def rendered(self, messages: Any, options: Mapping[str, Any]) -> RenderedChat:
        """A conversation as ``create_chat_completion`` would render it."""
        from llama_py.dialects.openai.chat import parse_chat

        return parse_chat(self._rendering.call_context(), messages, **options).rendered

    def prompt_of(self, messages: Messages, options: Mapping[str, Any]) -> Prompt:
        """The prompt of a conversation.

        Args:
            options: those of ``create_chat_completion``.
        """
        from llama_py.dialects.openai.chat import parse_chat

        relevant = {name: value for name, value in options.items() if name != "stream_options"}
        return parse_chat(self._rendering.call_context(), messages, **relevant).requests[0].prompt

    def count(self, prompt: Prompt, namespace: Hashable | None = None) -> int:
        """How many tokens the engine would evaluate or reuse for a prompt now.

        Cached replies in it count as they were written. The engine goes on meanwhile.

        Args:
            namespace: see ``GenerationRequest``.
        """
        request = GenerationRequest(prompt, namespace=namespace)
        try:
            return self._loaded.count(request)
        except ContextOverflowError:  # it may say no more than that
            return len(self.tokens_of(prompt))

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """The tokens that a freshly loaded model would give a prompt, without cached replies."""
        if prompt.tokens is not None:
            return [*prompt.tokens]
        text_keys = self._loaded.text_keys
        text = text_keys.mark(prompt.text or b"", prompt.plain, prompt.text_media)
        return text_keys.read(text, add_special=prompt.add_special)


def _count(vocab: Vocab, text: str) -> int:
    return len(vocab.tokenize(text.encode("utf-8", "surrogatepass"), add_special=False))


def _cells(message: Mapping[str, Any], place: int, context: ModelContext) -> int:
    """Tokens of the pictures and sounds of a message, which may be most of a conversation."""
    content, where = message.get("content"), f"messages[{place}].content"
    if not isinstance(content, (list, tuple)):
        return 0
    from llama_py.chat.conversation import Text
    from llama_py.dialects.openai.messages import read_parts

    try:
        return sum(
            len(context.medium(part, f"{where}[{number}]").tokens)
            for number, part in enumerate(read_parts(content, where))
            if not isinstance(part, Text)
        )
    except LlamaError:  # if it is not left out, rendering it says what is wrong
        return 0
