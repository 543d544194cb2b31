"""The loop of calls and results: a model answers, its calls are made, it answers again.

Each round evaluates what is new only: the conversation grows at its end, and is found again. A call
that cannot be made is a result as well, which the model sees: a name that there is not, arguments
of another type, an exception, a refusal, too much time.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field
from typing import Any, NoReturn

from llama_py.errors import ParameterError, ParameterTypeError
from llama_py.functions.tool import FunctionTool, as_text, read_tools
from llama_py.functions.types import WrongArgument

__all__ = [
    "ArgumentsPiece",
    "CallBegan",
    "FunctionCall",
    "FunctionResult",
    "RoundEnd",
    "RunEnd",
    "TextPiece",
    "ThoughtPiece",
    "ToolEvent",
    "ToolLoop",
    "ToolRun",
]


@dataclass(slots=True)
class FunctionCall:
    """A call of a tool.

    Attributes:
        id: of the call.
        name: of the tool.
        arguments: as the model wrote them: JSON.
        values: the arguments as the function gets them; None if they do not fit.
        result: what the function returned.
        text: what the model sees of it.
        error: the exception, if there was one.
    """

    id: str
    name: str
    arguments: str
    values: dict[str, Any] | None = None
    result: Any = None
    text: str = ""
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class ThoughtPiece:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegan:
    """The model has begun to write a call."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """More of the arguments of a call."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """A call has its result."""

    call: FunctionCall


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """A round is over: the number, from 1, and how many tokens of its prompt were reused."""

    number: int
    usage: Mapping[str, Any]


@dataclass(slots=True)
class ToolRun:
    """The result of a run.

    Attributes:
        text: the last reply.
        messages: the whole conversation, to go on with.
        calls: all calls, in order.
        rounds: replies of the model.
        finished: "stop"; "max_rounds": calls of the last round have results that the model has not
            seen; or another reason for which a reply ended ("length").
    """

    text: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    calls: list[FunctionCall] = field(default_factory=list)
    rounds: int = 0
    finished: str = ""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The run is over."""

    run: ToolRun


ToolEvent = (
    TextPiece | ThoughtPiece | CallBegan | ArgumentsPiece | FunctionResult | RoundEnd | RunEnd
)
#: Is asked before each call: True makes it, a dictionary makes it with other arguments, a text is
#: the result in its place, False refuses.
OnCall = Callable[[FunctionCall], "bool | str | dict[str, Any] | Awaitable[Any]"]

_REFUSED = "this call was refused"


class _Reply:
    """A reply as its chunks come."""

    def __init__(self) -> None:
        self.text, self.thoughts, self.finished = "", "", ""
        self.calls: list[FunctionCall] = []
        self.usage: Mapping[str, Any] = {}

    def add(self, chunk: Mapping[str, Any]) -> Iterator[ToolEvent]:
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices", ())[:1]:
            self.finished = choice.get("finish_reason") or self.finished
            delta = choice.get("delta") or {}
            if thought := delta.get("reasoning_content"):
                self.thoughts += thought
                yield ThoughtPiece(thought)
            if text := delta.get("content"):
                self.text += text
                yield TextPiece(text)
            for part in delta.get("tool_calls") or ():
                yield from self._add_call(part)

    def _add_call(self, part: Mapping[str, Any]) -> Iterator[ToolEvent]:
        function = part.get("function") or {}
        while len(self.calls) <= part["index"]:
            call = FunctionCall(part.get("id") or "", function.get("name") or "", "")
            self.calls.append(call)
            yield CallBegan(call.id, call.name)
        call = self.calls[part["index"]]
        if piece := function.get("arguments"):
            call.arguments += piece
            yield ArgumentsPiece(call.id, piece)

    @property
    def message(self) -> dict[str, Any]:
        """It as a message of the conversation."""
        found: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.thoughts:
            found["reasoning_content"] = self.thoughts
        if self.calls:
            found["tool_calls"] = [
                {
                    "id": each.id,
                    "type": "function",
                    "function": {"name": each.name, "arguments": each.arguments},
                }
                for each in self.calls
            ]
        return found


class ToolLoop:
    """One run: the tools, and what bounds them.

    Args:
        tools: functions, see ``FunctionTool.of``.
        max_rounds: replies at most.
        on_call: is asked before each call, see ``OnCall``.
        timeout: seconds that a call may take. A function that does not end is left to itself.
        max_result_chars: characters of a result that the model sees.
    """

    def __init__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Callable[..., Any]],
        *,
        max_rounds: int = 8,
        on_call: OnCall | None = None,
        timeout: float | None = None,
        max_result_chars: int | None = None,
    ) -> None:
        if max_rounds < 1:
            raise ParameterError(f"max_rounds must be at least 1, not {max_rounds}")
        self._tools = read_tools(tools)
        self._max_rounds, self._on_call = max_rounds, on_call
        self._timeout, self._longest = timeout, max_result_chars
        self.run = ToolRun(messages=[dict(each) for each in messages])

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's form."""
        return [tool.definition for tool in self._tools.values()]

    # -- one round ------------------------------------------------------------------------------

    def _begin(self) -> _Reply:
        self.run.rounds += 1
        return _Reply()

    def _take(self, reply: _Reply) -> None:
        self.run.messages.append(reply.message)
        self.run.calls += reply.calls
        self.run.text = reply.text

    def _goes_on(self, reply: _Reply) -> bool:
        if not reply.calls:
            self.run.finished = reply.finished or "stop"
        elif self.run.rounds == self._max_rounds:
            self.run.finished = "max_rounds"
        return not self.run.finished

    def _read(self, call: FunctionCall) -> FunctionTool | None:
        """The tool of a call; None if the call has its result already."""
        try:
            tool = self._tools.get(call.name)
            if tool is None:
                raise WrongArgument(
                    f"there is no tool {call.name}; there are: {', '.join(self._tools)}"
                )
            call.values = tool.read(call.arguments)
        except WrongArgument as error:
            self._fail(call, error)
            return None
        return tool

    def _prepare(self, call: FunctionCall) -> FunctionTool | None:
        """The tool of a call; None if the call has its result already."""
        tool = self._read(call)
        if tool is None or self._on_call is None:
            return tool
        answer = self._on_call(call)
        if inspect.isawaitable(answer):
            _refuse_to_await(answer)
        return self._judged(call, tool, answer)

    async def _prepare_async(self, call: FunctionCall) -> FunctionTool | None:
        tool = self._read(call)
        if tool is None or self._on_call is None:
            return tool
        answer: Any = self._on_call(call)
        return self._judged(call, tool, await answer if inspect.isawaitable(answer) else answer)

    def _judged(self, call: FunctionCall, tool: FunctionTool, answer: Any) -> FunctionTool | None:
        """The tool of a call, if it is to be made after what ``on_call`` said."""
        if isinstance(answer, dict):
            call.values = answer
        elif answer is False or isinstance(answer, str):
            call.text = answer if isinstance(answer, str) else _REFUSED
            return None
        elif answer is not True:  # a forgotten return would let every call through
            raise ParameterTypeError(
                f"on_call returned {answer!r}; it returns True, False, a dictionary or a text"
            )
        return tool

    def _fail(self, call: FunctionCall, error: BaseException) -> None:
        call.error = error
        named = isinstance(error, WrongArgument)
        call.text = str(error) if named else f"{type(error).__name__}: {error}"

    def _late(self, call: FunctionCall) -> None:
        error = TimeoutError(f"{call.name} did not end within {self._timeout:g} seconds")
        self._fail(call, error)

    def _succeed(self, call: FunctionCall, result: Any) -> None:
        call.result = result
        try:
            call.text = as_text(result)
        except (TypeError, ValueError) as error:  # a circle
            self._fail(call, error)

    def _end(self, call: FunctionCall) -> FunctionResult:
        call.text = call.text.encode("utf-8", "replace").decode()  # halves of characters
        longest = self._longest
        if longest is not None and len(call.text) > longest:
            call.text = f"{call.text[:longest]}... ({len(call.text) - longest} characters more)"
        self.run.messages.append({"role": "tool", "tool_call_id": call.id, "content": call.text})
        return FunctionResult(call)

    # -- threads --------------------------------------------------------------------------------

    def events(self, ask: Callable[[list[dict[str, Any]]], Any]) -> Iterator[ToolEvent]:
        """Run; ``ask`` gives the chunks of a reply to messages."""
        while True:
            reply = self._begin()
            for chunk in ask(self.run.messages):
                yield from reply.add(chunk)
            self._take(reply)
            yield from self._calls(reply.calls)
            yield RoundEnd(self.run.rounds, reply.usage)
            if not self._goes_on(reply):
                yield RunEnd(self.run)
                return

    def _calls(self, calls: Sequence[FunctionCall]) -> Iterator[FunctionResult]:
        """The calls of a round, beside each other."""
        ready = [(call, self._prepare(call)) for call in calls]
        jobs = [_in_a_thread(tool, call) if tool else None for call, tool in ready]
        for call, job in zip(calls, jobs, strict=True):
            if job is not None:
                self._wait(call, job)
            yield self._end(call)

    def _wait(self, call: FunctionCall, job: Future[Any]) -> None:
        try:
            self._succeed(call, job.result(self._timeout))
        except Late as error:
            self._fail(call, error) if job.done() else self._late(call)
        except Exception as error:  # of the caller's function: the model and the caller see it
            self._fail(call, error)

    # -- coroutines -----------------------------------------------------------------------------

    async def async_events(
        self, ask: Callable[[list[dict[str, Any]]], AsyncIterator[Any]]
    ) -> AsyncIterator[ToolEvent]:
        """The same in an event loop: coroutine functions are awaited, others get a thread."""
        while True:
            reply = self._begin()
            async for chunk in ask(self.run.messages):
                for event in reply.add(chunk):
                    yield event
            self._take(reply)
            ready = [(call, await self._prepare_async(call)) for call in reply.calls]
            await asyncio.gather(*(self._await(call, tool) for call, tool in ready if tool))
            for call in reply.calls:
                yield self._end(call)
            yield RoundEnd(self.run.rounds, reply.usage)
            if not self._goes_on(reply):
                yield RunEnd(self.run)
                return

    async def _await(self, call: FunctionCall, tool: FunctionTool) -> None:
        try:
            job: Any
            if tool.is_async:
                job = _awaited(tool, call)
            else:
                job = asyncio.wrap_future(_in_a_thread(tool, call))
            self._succeed(call, await asyncio.wait_for(job, self._timeout))
        except (asyncio.TimeoutError, TimeoutError):
            self._late(call) if self._timeout is not None else self._fail(call, TimeoutError())
        except Exception as error:  # of the caller's function: the model and the caller see it
            self._fail(call, error)


def _in_a_thread(tool: FunctionTool, call: FunctionCall) -> Future[Any]:
    """Call a tool in a thread that the end of the program does not wait for."""
    job = Future[Any]()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(_call, tool, call)
        except BaseException as error:  # the caller's thread gets it
            job.set_exception(error)
        else:
            job.set_result(result)

    job.set_running_or_notify_cancel()
    threading.Thread(target=work, name="llama_py-tool", daemon=True).start()
    return job


def _call(tool: FunctionTool, call: FunctionCall) -> Any:
    if tool.is_async:
        return asyncio.run(_awaited(tool, call))
    try:
        return tool.function(**(call.values or {}))
    except SystemExit as error:
        _refuse_to_end(error)


async def _awaited(tool: FunctionTool, call: FunctionCall) -> Any:
    try:
        return await tool.function(**(call.values or {}))
    except SystemExit as error:
        _refuse_to_end(error)


def _refuse_to_end(error: SystemExit) -> NoReturn:
    """A parser of arguments, say, ends the program where it does not like them."""
    raise RuntimeError(f"the function wanted to end the program: {error}") from error


def _refuse_to_await(answer: Any) -> NoReturn:
    if inspect.iscoroutine(answer):
        answer.close()
    raise ParameterError("on_call is a coroutine function, which only AsyncLlama awaits")
