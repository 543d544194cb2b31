"""``Runtime``: the inside of a model; ``Llama``, ``AsyncLlama``, the server and others hold one."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from llama_py.api.call import Call, LastCalls, Outcome, ReplyStream, failure_of
from llama_py.api.lowlevel import ByHand
from llama_py.api.overflow import MessageSizes, OverflowReport, fit
from llama_py.api.port import LoadedModel, ModelPort
from llama_py.api.rendering import ChatSettings, ModelContext, Rendering
from llama_py.core.vocab import Vocab
from llama_py.dialects.openai.completions import CompletionCall, parse_completion
from llama_py.engine.events import Events
from llama_py.engine.request import FinishEvent, GenerationRequest, Prompt, Record
from llama_py.errors import ContextOverflowError, LlamaError
from llama_py.options.values import read_policy

if TYPE_CHECKING:
    import asyncio

    from llama_py.api.embedding.lists import EmbeddingLists
    from llama_py.chat.rendered import RenderedChat
    from llama_py.dialects.openai.chat import ChatCall
    from llama_py.engine.async_events import AsyncEvents

__all__ = ["Calls", "Runtime"]


class Runtime:
    """A loaded model, and what parses, renders, submits and answers its calls.

    It changes with the versions: programs use the ``Llama``. No part refers to this or to that, so
    that ``del`` frees everything at once.

    Args:
        port: the model; it belongs to this.
        arguments: those of ``Llama``, as ``options.LOAD`` completed them, and ``model_path``.
        given: those that somebody gave; a copy of the ``Llama`` is made with them.
        settings: what calls get that say nothing else.
        template: Jinja text in place of the model's own, or None.
        chat_format: the name of a format in place of any template, or None.

    Attributes:
        port, given, settings: as they were passed; the last two may be changed between calls.
        rendering: conversations to prompts.
        calls: arguments to checked calls.
        by_hand: evaluating token by token.
        last: what the last call left behind.

    Raises:
        ParameterError, ContextCreationError: see ``Llama``; nothing is left in memory.
    """

    def __init__(
        self,
        port: ModelPort,
        arguments: Mapping[str, Any],
        given: dict[str, Any],
        settings: ChatSettings,
        template: str | None,
        chat_format: str | None,
    ) -> None:
        self.port = port
        self.given = given
        self.settings = settings
        self.last = last = LastCalls()
        rendering = Rendering(port, settings, template, chat_format, arguments["tool_form"])
        self.rendering = rendering
        self.calls = Calls(port, settings, rendering, last)
        self.by_hand = ByHand(port, rendering, last, logits_all=arguments["logits_all"])
        self._pooling_type: int = arguments["pooling_type"]

    @property
    def loaded(self) -> LoadedModel:
        """The model itself, for the parts of this package that compute; see ``ModelPort.here``."""
        return self.port.here()

    @cached_property
    def embedding(self) -> EmbeddingLists:
        """Calls that embed; what only they need is imported with the first one."""
        from llama_py.api.embedding.lists import EmbeddingLists

        return EmbeddingLists(self.port, self._pooling_type)

    def submit(self, requests: Sequence[GenerationRequest], *, whole: bool = False) -> Events:
        """Queue the requests of a call, all or none; see ``Events``.

        What ``eval`` evaluated is let go before: one of them may begin with it.
        """
        queue, first = self.port.queue, self.by_hand.release
        return Events(queue, requests, whole=whole, first=first)

    def submit_from(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Sequence[GenerationRequest],
        *,
        whole: bool = False,
    ) -> AsyncEvents:
        """Queue the requests of a call whose events an event loop reads; see ``AsyncEvents``."""
        from llama_py.engine.async_events import AsyncEvents  # and asyncio: a tenth of the start

        queue, first = self.port.queue, self.by_hand.release
        return AsyncEvents(queue, requests, loop, whole=whole, first=first)

    def respond(self, call: Call) -> Any:
        """The whole reply of a call, or with ``stream`` the stream of its chunks."""
        stream, outcome = call.parsed.head.stream, call.outcome
        events = self.submit(call.parsed.requests, whole=not stream)
        outcome.records = events.records
        if stream:
            return ReplyStream(call, events)
        encoder = call.parsed.encoder(outcome.records)
        try:
            with events:
                for index, event in events:
                    encoder.feed(index, event)
                    if type(event) is FinishEvent:
                        outcome.note(index, event)
                        if event.error is not None:
                            raise failure_of(event, encoder) or event.error
        finally:
            outcome.note_end()
        return call.reply(encoder.response())

    def run(self, request: GenerationRequest) -> Record:
        """Evaluate a request and discard its output."""
        outcome = Outcome(self.last)
        events = self.submit([request], whole=True)
        outcome.records = events.records
        try:
            with events:
                for index, event in events:
                    outcome.note(index, event)
                    error = getattr(event, "error", None)
                    if error is not None:
                        raise error
        finally:
            outcome.note_end()
        return events.records[0]

    def limit_reuse(self, *, reuse: bool, text: bool) -> None:
        """Let later calls find nothing, tokens only, or texts in memory; for measurements."""
        cache = self.loaded.cache
        cache.limits = replace(cache.limits, reuse=reuse, text=text)

    def close(self) -> None:
        """Free everything; in a forked child, nothing."""
        self.port.close()
        self.rendering.close()


# ---- calls ---------------------------------------------------------------------------------------
#
# ``Calls``: the arguments of a call, checked and rendered. Nothing is evaluated here.


Messages = Sequence[Mapping[str, Any]]


class Calls:
    """Parses the calls of one model, for both faces, and measures prompts."""

    def __init__(
        self, port: ModelPort, settings: ChatSettings, rendering: Rendering, last: LastCalls
    ) -> None:
        self._port = port
        self._settings = settings
        self._last = last
        self._rendering = rendering
        self._sizes = MessageSizes(partial(_count, port.model.vocab))

    def completion(
        self, prompt: str | Sequence[int], stream: bool, options: Mapping[str, Any]
    ) -> Call:
        """A call of ``create_completion``."""
        vocab = self._port.model.vocab
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
            self._port.facts.limit,
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
            return self._port.count(request)
        except ContextOverflowError:  # it may say no more than that
            return len(self.tokens_of(prompt))

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """The tokens that a freshly loaded model would give a prompt, without cached replies."""
        if prompt.tokens is not None:
            return [*prompt.tokens]
        text_keys = self._port.text_keys
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
