"""``AsyncLlama``: the calls of ``Llama`` for asyncio (and uvloop).

Checking, rendering and tokenizing a call happens in a worker thread; the engine has its own, and
calls the event loop once per step; the loop only passes events on. Cancelling the task, closing the
stream, or dropping it cancels the request. A consumer that reads slowly makes its own reply wait,
and nobody else's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from typing_extensions import Self, Unpack

from llama_py import forks
from llama_py.api.call import Call, ChatReply, CompletionReply, failure_of
from llama_py.api.kept.model_cache import ModelStates
from llama_py.api.llama import Llama
from llama_py.api.overflow import OverflowReport
from llama_py.api.scoring.scoring import Score, ScoringJob, TokenIds
from llama_py.dialects.openai.types import (
    CreateChatCompletionStreamResponse,
    CreateCompletionStreamResponse,
)
from llama_py.engine.async_events import AsyncEvents
from llama_py.engine.request import Event, FinishEvent
from llama_py.errors import ClosedError, ParameterError
from llama_py.memory.sequences import ReuseInfo
from llama_py.options import (
    CHAT,
    COMPLETION,
    ChatOptions,
    CompletionOptions,
    LoadOptions,
    PromptOptions,
)
from llama_py.options.docstrings import describe_options

if TYPE_CHECKING:
    from llama_py.functions.options import ToolRunOptions
    from llama_py.functions.rounds import RunEnd, ToolEvent, ToolRun

__all__ = ["AsyncLlama", "AsyncReplyStream"]

T = TypeVar("T")
C = TypeVar("C")

#: Threads that check and render calls. More would only wait for each other.
_WORKERS = 4
#: Events that the event loop itself makes a reply of; it takes it a millisecond or two.
_SHORT = 64


class AsyncLlama:
    """A model whose calls are awaited. Any number of them may be in flight; they are batched.

    Args:
        model_path: a GGUF file, with the same further parameters as ``Llama``. Loading blocks;
            ``await AsyncLlama.load(...)`` does not.
        llama: a loaded model to use instead. It stays open when this object is closed, and may be
            called from other threads meanwhile.

    Attributes:
        llama: the model.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] | None = None,
        *,
        llama: Llama | None = None,
        **options: Unpack[LoadOptions],
    ) -> None:
        if (model_path is None) == (llama is None) or (llama is not None and options):
            raise ParameterError("give a model_path with its parameters, or llama=, and not both")
        if (llama.runtime.given if llama is not None else options).get("in_place"):
            raise ParameterError("a model that is loaded with in_place=True cannot be awaited")
        self._owned = llama is None
        self.llama = llama if llama is not None else Llama(model_path, **options)  # type: ignore[arg-type]
        self._begin()

    def _begin(self) -> None:
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="llama_py-aio")
        self._closed = False
        self._process = forks.current()

    @classmethod
    async def load(cls, model_path: str | os.PathLike[str], **options: Unpack[LoadOptions]) -> Self:
        """Load a model without blocking the event loop. Cancelling it stops the loading."""
        unwanted = threading.Event()
        wanted = options.get("progress")

        def progress(done: float) -> bool | None:
            return not unwanted.is_set() and (wanted is None or wanted(done))

        if wanted is None or callable(wanted):
            options["progress"] = progress
        try:
            model = await asyncio.to_thread(partial(cls, model_path, **options))
        except asyncio.CancelledError:
            unwanted.set()
            raise
        model.llama.runtime.given["progress"] = wanted  # what a copy of the model is made with
        return model

    # -- calls (their overloads: python -m tools.overloads) -------------------------------------

    @overload
    async def create_completion(
        self,
        prompt: str | Sequence[int],
        *,
        stream: Literal[False] = ...,
        **options: Unpack[CompletionOptions],
    ) -> CompletionReply: ...
    @overload
    async def create_completion(
        self,
        prompt: str | Sequence[int],
        *,
        stream: Literal[True],
        **options: Unpack[CompletionOptions],
    ) -> AsyncReplyStream[CreateCompletionStreamResponse]: ...
    @overload
    async def create_completion(
        self, prompt: str | Sequence[int], *, stream: bool, **options: Unpack[CompletionOptions]
    ) -> CompletionReply | AsyncReplyStream[CreateCompletionStreamResponse]: ...
    async def create_completion(
        self,
        prompt: str | Sequence[int],
        *,
        stream: bool = False,
        **options: Unpack[CompletionOptions],
    ) -> CompletionReply | AsyncReplyStream[CreateCompletionStreamResponse]:
        """Continue a text: ``Llama.create_completion``, awaited.

        Returns:
            The response; with ``stream`` an ``AsyncReplyStream`` of chunks.
        """
        if _overrides(self.llama, "create_completion"):
            method = self.llama.create_completion
            return await self._in_a_thread(method, prompt, stream, options)  # type: ignore[no-any-return]
        parse = partial(self.llama.runtime.calls.completion, prompt, stream, options)
        return await self._respond(stream, parse)  # type: ignore[no-any-return]

    __call__ = create_completion

    @overload
    async def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: Literal[False] = ...,
        **options: Unpack[ChatOptions],
    ) -> ChatReply: ...
    @overload
    async def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: Literal[True],
        **options: Unpack[ChatOptions],
    ) -> AsyncReplyStream[CreateChatCompletionStreamResponse]: ...
    @overload
    async def create_chat_completion(
        self, messages: Sequence[Mapping[str, Any]], *, stream: bool, **options: Unpack[ChatOptions]
    ) -> ChatReply | AsyncReplyStream[CreateChatCompletionStreamResponse]: ...
    async def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: bool = False,
        **options: Unpack[ChatOptions],
    ) -> ChatReply | AsyncReplyStream[CreateChatCompletionStreamResponse]:
        """Answer a conversation: ``Llama.create_chat_completion``, awaited.

        Returns:
            The response; with ``stream`` an ``AsyncReplyStream`` of chunks.
        """
        llama = self.llama
        if llama.chat_handler is not None or _overrides(llama, "create_chat_completion"):
            method = llama.create_chat_completion
            return await self._in_a_thread(method, messages, stream, options)  # type: ignore[no-any-return]
        parse = partial(llama.runtime.calls.chat, messages, stream, options)
        return await self._respond(stream, parse)  # type: ignore[no-any-return]

    async def run_tools(  # type: ignore[misc]  # its tools are functions
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any]],
        **options: Unpack[ToolRunOptions],
    ) -> ToolRun:
        """Answer a conversation with functions as tools: ``Llama.run_tools``, awaited.

        Coroutine functions are awaited, others run in threads; calls of a reply beside each other.
        """
        async for event in self.stream_tools(messages, tools, **options):
            last = event
        return cast("RunEnd", last).run

    async def stream_tools(  # type: ignore[misc]  # its tools are functions
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any]],
        **options: Unpack[ToolRunOptions],
    ) -> AsyncIterator[ToolEvent]:
        """The events of ``run_tools`` (``llama_py.functions.rounds``)."""
        from llama_py.functions.options import begin_run

        loop, given = begin_run(messages, tools, options)

        async def ask(asked: list[dict[str, Any]]) -> AsyncIterator[Any]:
            async with await self.create_chat_completion(asked, **given) as chunks:
                async for chunk in chunks:
                    yield chunk

        async for event in loop.async_events(ask):
            yield event

    async def score(
        self,
        prefix: str | TokenIds | Sequence[Mapping[str, Any]],
        continuations: Sequence[str | TokenIds],
        *,
        timeout: float | None = None,
        **options: Unpack[PromptOptions],
    ) -> list[Score]:
        """Log-probabilities of several continuations: ``Llama.score``, awaited.

        Cancelling the task stops the scoring.
        """
        self._check_open()
        job = ScoringJob(self.llama.runtime, prefix, continuations, timeout, options)
        try:
            return await asyncio.to_thread(job.run)
        except asyncio.CancelledError:
            job.cancel()
            raise

    @property
    def states(self) -> ModelStates:
        """``llama.states``, whose methods wait: ``await a.run(a.states.save, "name")``."""
        return self.llama.states

    async def run(self, method: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run any other method of ``llama`` in a worker thread: ``await a.run(a.llama.reset)``."""
        self._check_open()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, partial(method, *arguments, **options))

    async def _respond(self, stream: bool, parse: Callable[[], Call]) -> Any:
        """Check and queue a call in a worker thread. Being cancelled meanwhile cancels the call."""
        self._check_open()
        loop = asyncio.get_running_loop()

        def start() -> AsyncReplyStream[Any]:
            call = parse()
            parsed = call.parsed
            events = self.llama.runtime.submit_from(loop, parsed.requests, whole=not parsed.stream)
            call.outcome.records = events.records
            return AsyncReplyStream(call, events)

        started = self._workers.submit(start)
        try:
            reply = await asyncio.wrap_future(started)
        except asyncio.CancelledError:
            started.add_done_callback(_abandon)
            raise
        if stream:
            return reply
        async with reply:
            return await reply.whole()

    async def _in_a_thread(
        self, method: Callable[..., Any], given: Any, stream: bool, options: Mapping[str, Any]
    ) -> Any:
        """A chat handler, or the method of a subclass, is synchronous: it runs in a worker thread,
        and so does its stream."""
        reply = await self.run(method, given, stream=stream, **options)
        return self._iterate(iter(reply)) if stream else reply

    async def _iterate(self, chunks: Any) -> AsyncIterator[Any]:
        nothing = object()
        while (chunk := await self.run(next, chunks, nothing)) is not nothing:
            yield chunk

    # -- life -----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """The model's arguments; unpickling loads it again, in whatever process."""
        self._check_open()
        return {"llama": self.llama, "_owned": self._owned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this AsyncLlama was closed; make a new one")
        if self._process.inherited:  # where its threads are not
            raise forks.refuse()

    def close(self) -> None:
        """Stop the threads; close the model if it was loaded by this object."""
        if self._closed:
            return
        if self._process.inherited:
            self._closed = True
            return
        self.llama.runtime.port.refuse_callbacks()
        self._closed = True
        self._workers.shutdown()
        if self._owned:
            self.llama.close()

    async def aclose(self) -> None:
        """``close`` without blocking the event loop."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncReplyStream(AsyncIterator[C]):
    """The chunks of one call.

    ``await aclose()`` cancels what is still being generated; so do cancelling the task that waits
    for a chunk, and dropping the last reference.
    """

    def __init__(self, call: Call, events: AsyncEvents) -> None:
        self._call = call
        self._events = events
        self._encoder: Any = call.encoder()
        opening: Any = self._encoder.open()
        self._chunks: deque[C] = deque(opening)
        self._error: BaseException | None = None
        self._closed = False
        #: One task reads events at a time: another one may close the stream meanwhile.
        self._turn = asyncio.Lock()

    @property
    def cache(self) -> ReuseInfo:
        """Reuse of the prompt, as in ``llm.cache.info``; empty before the first token."""
        return self._call.outcome.cache

    @property
    def dropped(self) -> OverflowReport | None:
        """The messages that the overflow policy left out, or None."""
        return self._call.outcome.dropped

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> C:
        while not self._chunks:
            if self._error is not None:
                error, self._error = self._error, None
                self._events.cancel()
                raise error
            if not self._events.unfinished:
                raise StopAsyncIteration
            await self._take()
        return self._chunks.popleft()

    async def whole(self) -> CompletionReply | ChatReply:
        """Read to the end, and return the whole response.

        A long reply is put together in a worker thread: parsing it takes longer than other tasks
        of the event loop should wait.
        """
        read: list[tuple[int, Event]] = []
        failed = False
        try:
            async with self._turn:
                while self._events.unfinished and not failed:
                    read.append(await anext(self._events))
                    read += self._events.ready()
                    failed = any(type(each) is FinishEvent and each.error for _, each in read)
        except asyncio.CancelledError:
            self._events.cancel()
            raise
        if len(read) <= _SHORT:
            return self._fold(read)
        return await asyncio.to_thread(self._fold, read)

    def _fold(self, read: Sequence[tuple[int, Event]]) -> CompletionReply | ChatReply:
        for index, event in read:
            self._call.outcome.note(index, event)
            self._encoder.feed(index, event)
            error = failure_of(event, self._encoder)
            if error is not None and not self._closed:
                raise error
        return self._call.reply(self._encoder.response())

    async def _take(self) -> None:
        try:
            async with self._turn:
                if not self._events.unfinished:  # another task has taken the last one
                    return
                index, event = await anext(self._events)
                self._call.outcome.note(index, event)
                if self._closed:
                    return
                self._chunks.extend(self._encoder.feed(index, event))
                self._error = failure_of(event, self._encoder)
                if not self._events.unfinished and self._error is None:
                    self._chunks.extend(self._encoder.close())
        except asyncio.CancelledError:
            self._events.cancel()
            raise

    async def aclose(self) -> None:
        """Cancel what is still being generated; returns when it has ended.

        Another task may be waiting for a chunk: its iteration ends.
        """
        self._closed = True
        self._events.cancel()
        self._chunks.clear()
        while self._events.unfinished:
            await self._take()
        self._call.outcome.note_end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _abandon(started: Future[AsyncReplyStream[Any]]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result()._events.cancel()


def _overrides(llama: Llama, name: str) -> bool:
    """Whether a subclass has a method of its own in place of ``Llama``'s."""
    return getattr(type(llama), name) is not getattr(Llama, name)


describe_options(AsyncLlama.create_completion, COMPLETION)
describe_options(AsyncLlama.create_chat_completion, CHAT)
