"""``Runtime``: the inside of a model; ``Llama``, ``AsyncLlama``, the server and others hold one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from llama_py.api.call import Call, LastCalls, Outcome, ReplyStream, failure_of
from llama_py.api.calls import Calls
from llama_py.api.loading import LoadedModel
from llama_py.api.lowlevel import ByHand
from llama_py.api.rendering import ChatSettings, Rendering
from llama_py.engine.events import Events
from llama_py.engine.request import FinishEvent, GenerationRequest, Record

if TYPE_CHECKING:
    import asyncio

    from llama_py.api.embedding.lists import EmbeddingLists
    from llama_py.engine.async_events import AsyncEvents

__all__ = ["Runtime"]


class Runtime:
    """A loaded model, and what parses, renders, submits and answers its calls.

    It changes with the versions: programs use the ``Llama``. No part refers to this or to that, so
    that ``del`` frees everything at once.

    Args:
        loaded: the model, its context, and the engine that drives them; it belongs to this.
        arguments: those of ``Llama``, as ``options.LOAD`` completed them, and ``model_path``.
        given: those that somebody gave; a copy of the ``Llama`` is made with them.
        settings: what calls get that say nothing else.
        template: Jinja text in place of the model's own, or None.
        chat_format: the name of a format in place of any template, or None.

    Attributes:
        loaded, given, settings: as they were passed; the last two may be changed between
            calls.
        rendering: conversations to prompts.
        calls: arguments to checked calls.
        by_hand: evaluating token by token.
        last: what the last call left behind.

    Raises:
        ParameterError, ContextCreationError: see ``Llama``; nothing is left in memory.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        arguments: Mapping[str, Any],
        given: dict[str, Any],
        settings: ChatSettings,
        template: str | None,
        chat_format: str | None,
    ) -> None:
        self.loaded = loaded
        self.given = given
        self.settings = settings
        self.last = last = LastCalls()
        rendering = Rendering(loaded, settings, template, chat_format, arguments["tool_form"])
        self.rendering = rendering
        self.calls = Calls(loaded, settings, rendering, last)
        self.by_hand = ByHand(loaded, rendering, last, logits_all=arguments["logits_all"])
        self._pooling_type: int = arguments["pooling_type"]

    @cached_property
    def embedding(self) -> EmbeddingLists:
        """Calls that embed; what only they need is imported with the first one."""
        from llama_py.api.embedding.lists import EmbeddingLists

        return EmbeddingLists(self.loaded, self._pooling_type)

    def submit(self, requests: Sequence[GenerationRequest], *, whole: bool = False) -> Events:
        """Queue the requests of a call, all or none; see ``Events``.

        What ``eval`` evaluated is let go before: one of them may begin with it.
        """
        port, first = self.loaded.port, self.by_hand.release
        return Events(port, requests, whole=whole, first=first)

    def submit_from(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Sequence[GenerationRequest],
        *,
        whole: bool = False,
    ) -> AsyncEvents:
        """Queue the requests of a call whose events an event loop reads; see ``AsyncEvents``."""
        from llama_py.engine.async_events import AsyncEvents  # and asyncio: a tenth of the start

        port, first = self.loaded.port, self.by_hand.release
        return AsyncEvents(port, requests, loop, whole=whole, first=first)

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

    def close(self) -> None:
        """Free everything; in a forked child, nothing."""
        self.loaded.close()
        self.rendering.close()
