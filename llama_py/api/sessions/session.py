"""``ChatSession``: one conversation with a model, that can be branched, edited, saved and resumed.

A session owns its messages and nothing else. What the model has in memory belongs to the cache of
``Llama``, which finds it by the text of the conversation: sessions are cheap, any number of them
share one model, and a branch reuses what its origin evaluated.

A turn is committed when its reply is complete. Whatever ends it earlier (an error, a consumer that
raises, ``close()``) leaves ``messages`` as they were.
"""

from __future__ import annotations

import copy
import os
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from typing_extensions import Self, Unpack

from llama_py.api.call import ChatReply
from llama_py.api.sessions import session_file
from llama_py.api.sessions.session_media import UserContent, as_content
from llama_py.api.sessions.session_reply import TurnStream
from llama_py.chat.messages import check_names
from llama_py.dialects.openai.messages import read_messages, read_tools
from llama_py.errors import ClosedError, ParameterError, ParameterTypeError
from llama_py.options import ChatOptions, TurnOptions
from llama_py.options.values import read_policy

if TYPE_CHECKING:
    from llama_py.api.kept.model_cache import ModelCache
    from llama_py.api.overflow import OverflowReport
    from llama_py.functions.options import ToolRunOptions
    from llama_py.functions.rounds import ToolRun
    from llama_py.options.values import ChatPolicy

__all__ = ["ChatModel", "ChatSession", "TurnStream"]

Message = dict[str, Any]

#: Options that the session sets itself.
_OWN = ("messages", "n", "session_id", "stream", "stream_options", "user")


class ChatModel(Protocol):
    """A session's view of a model: a ``Llama`` has it."""

    @property
    def cache(self) -> ModelCache: ...

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: Literal[True],
        **options: Unpack[ChatOptions],
    ) -> Any: ...


class ChatSession:
    """One conversation. Use it from one thread at a time; different sessions may run in parallel.

    ``send`` returns the text of the reply. The rest of what a chat completion has (usage, finish
    reason, log-probabilities) is in ``last_response``, and tool calls are in ``tool_calls``.

    Args:
        llm: the model; it outlives the session.
        system: the system message.
        session_id: names the conversation in ``llm.cache_info``; one is made up by default.
        tools: functions that the model may call, in OpenAI's form.
        overflow: what to leave out when the conversation no longer fits (``TrimMessages()``); by
            default what the model was loaded with, or else a ``ContextOverflowError``. What was
            left out of the last turn is in ``dropped``.
        defaults: options of ``create_chat_completion`` for every turn: ``temperature``, ...
    """

    def __init__(
        self,
        llm: ChatModel,
        system: str | None = None,
        *,
        session_id: str | None = None,
        **defaults: Unpack[TurnOptions],
    ) -> None:
        _check_options(defaults)
        if system is not None and not isinstance(system, str):
            raise ParameterTypeError(f"system must be a string, not {type(system).__name__}")
        tools, overflow = defaults.pop("tools", None), defaults.pop("overflow", None)
        read_policy("overflow", overflow)
        self.session_id = session_id or f"chat-{uuid.uuid4().hex}"
        self.overflow: ChatPolicy | None = overflow
        #: The chat completion of the last turn, which says in ``cache`` what was reused; or None.
        self.last_response: ChatReply | None = None
        #: Messages that the overflow policy left out in the last turn.
        self.dropped: list[Message] = []
        self._llm = llm
        self._defaults = defaults
        check_names(read_tools(tools))
        self._tools = copy.deepcopy([dict(tool) for tool in tools]) if tools else None
        self._messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self._results: list[Message] = []
        #: Weak, because a reply knows its session: both go when nobody has them any more.
        self._reply: weakref.ref[TurnStream] | None = None
        self._closed = False

    # -- talking ------------------------------------------------------------------------------

    @overload
    def send(
        self, text: UserContent, *, stream: Literal[False] = ..., **sampling: Unpack[TurnOptions]
    ) -> str: ...
    @overload
    def send(
        self, text: UserContent, *, stream: Literal[True], **sampling: Unpack[TurnOptions]
    ) -> TurnStream: ...
    @overload
    def send(
        self, text: UserContent, *, stream: bool, **sampling: Unpack[TurnOptions]
    ) -> str | TurnStream: ...
    def send(
        self, text: UserContent, *, stream: bool = False, **sampling: Unpack[TurnOptions]
    ) -> str | TurnStream:
        """Say something; the text of the reply.

        Args:
            text: a text, or a list of texts, pictures (``Image``) and sounds (``Audio``).
            stream: return a ``TurnStream``, which gives the text piece by piece.
            sampling: options of ``create_chat_completion`` for this turn only.

        Raises:
            ContextOverflowError: the conversation does not fit any more.
            ParameterError: the last reply asked for tools that have no result yet.
        """
        self._refuse_open_calls()
        new = [*self._results, {"role": "user", "content": as_content(text)}]
        return self._turn([*self._messages, *new], stream, sampling)

    @overload
    def send_tool_result(
        self,
        call_id: str,
        content: str,
        *,
        stream: Literal[False] = ...,
        **sampling: Unpack[TurnOptions],
    ) -> str | None: ...
    @overload
    def send_tool_result(
        self, call_id: str, content: str, *, stream: Literal[True], **sampling: Unpack[TurnOptions]
    ) -> TurnStream | None: ...
    @overload
    def send_tool_result(
        self, call_id: str, content: str, *, stream: bool, **sampling: Unpack[TurnOptions]
    ) -> str | TurnStream | None: ...
    def send_tool_result(
        self, call_id: str, content: str, *, stream: bool = False, **sampling: Unpack[TurnOptions]
    ) -> str | TurnStream | None:
        """Give the result of a tool call. When all calls have one, the model goes on.

        Returns:
            The reply like ``send``; None while other calls of the same reply are open.

        Raises:
            ParameterError: no open call has this id, or ``content`` is not a text (or text parts).
        """
        waiting = self._open_ids()
        if call_id not in waiting:
            known = ", ".join(waiting) or "none"
            raise ParameterError(f"there is no open tool call {call_id!r}; open: {known}")
        result = {"role": "tool", "tool_call_id": call_id, "content": content}
        read_messages([*self._messages, *self._results, result])  # raises before it is kept
        if len(waiting) > 1:
            self._results.append(result)
            return None
        return self._turn([*self._messages, *self._results, result], stream, sampling)

    def run(  # type: ignore[misc]  # its tools are functions
        self,
        text: UserContent,
        tools: Sequence[Callable[..., Any]],
        **options: Unpack[ToolRunOptions],
    ) -> ToolRun:
        """Say something, with functions as tools: ``Llama.run_tools`` in this conversation.

        The conversation has all calls and results afterwards; if the run fails, it is as before.

        Raises:
            ParameterError: the last reply asked for tools that have no result yet.
        """
        from llama_py.functions.options import begin_run

        self._refuse_open_calls()
        asked = [*self.messages, {"role": "user", "content": as_content(text)}]
        loop, given = begin_run(asked, tools, {**self._defaults, **options})
        chat: Any = self._llm.create_chat_completion
        for _ in loop.events(lambda messages: chat(messages, session_id=self.session_id, **given)):
            pass
        self._give_up_reply()
        self._messages = loop.run.messages
        return loop.run

    @overload
    def regenerate(
        self, *, stream: Literal[False] = ..., **sampling: Unpack[TurnOptions]
    ) -> str: ...
    @overload
    def regenerate(
        self, *, stream: Literal[True], **sampling: Unpack[TurnOptions]
    ) -> TurnStream: ...
    @overload
    def regenerate(self, *, stream: bool, **sampling: Unpack[TurnOptions]) -> str | TurnStream: ...
    def regenerate(
        self, *, stream: bool = False, **sampling: Unpack[TurnOptions]
    ) -> str | TurnStream:
        """Replace the last reply by another one.

        Raises:
            ParameterError: nothing was said yet.
        """
        asked = [i for i, m in enumerate(self._messages) if m["role"] in ("user", "tool")]
        if not asked:
            raise ParameterError("there is nothing to answer yet; send() something first")
        return self._turn(self._messages[: asked[-1] + 1], stream, sampling)

    def _turn(
        self, messages: list[Message], stream: bool, sampling: TurnOptions
    ) -> str | TurnStream:
        if self._closed:
            raise ClosedError("this session was closed")
        _check_options(sampling)
        self._give_up_reply()
        options: TurnOptions = {"tools": self._tools, **self._defaults, **sampling}
        if "overflow" not in options and self.overflow is not None:
            options["overflow"] = self.overflow
        chunks: Any = self._llm.create_chat_completion(
            messages,
            stream=True,
            stream_options={"include_usage": True},
            session_id=self.session_id,
            **options,
        )
        report: OverflowReport | None = getattr(chunks, "dropped", None)
        left_out = {*report.places} if report is not None else set()
        self.dropped = [messages[place] for place in sorted(left_out)]
        kept = [dict(each) for place, each in enumerate(messages) if place not in left_out]
        reply = TurnStream(self._commit, kept, chunks)
        self._reply = weakref.ref(reply)
        reply.begin()  # the chunk with the role: from here on, closing the stream cancels it
        return reply if stream else reply.read()

    def _give_up_reply(self) -> None:
        """Else the reply to the conversation as it was would put that back when it has come."""
        reply = self._reply() if self._reply is not None else None
        if reply is not None:
            reply.close()

    def _commit(self, messages: list[Message], response: ChatReply) -> None:
        self._messages = messages
        self._results = []
        self.last_response = response

    # -- the conversation ---------------------------------------------------------------------

    @property
    def messages(self) -> list[Message]:
        """A copy of the conversation, the system message included."""
        return copy.deepcopy(self._messages)

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Tool calls of the last reply that have no result yet."""
        last = self._messages[-1] if self._messages else {}
        answered = {result["tool_call_id"] for result in self._results}
        return [call for call in last.get("tool_calls", ()) if call["id"] not in answered]

    def _refuse_open_calls(self) -> None:
        if self.tool_calls:
            raise ParameterError(
                f"the last reply calls tools ({', '.join(self._open_ids())}); answer them with "
                "send_tool_result(), or take the reply back with regenerate() or edit()"
            )

    def _open_ids(self) -> list[str]:
        return [call["id"] for call in self.tool_calls]

    @property
    def system(self) -> str | None:
        """The system message. Setting it keeps the rest of the conversation, and gives up a reply
        that is still coming."""
        first = self._messages[0] if self._messages else {}
        return first["content"] if first.get("role") == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        self._give_up_reply()
        rest = self._messages[1:] if self.system is not None else self._messages
        self._messages = [{"role": "system", "content": text}, *rest] if text else [*rest]

    def edit(self, index: int, text: UserContent) -> None:
        """Change what was said at ``index`` of ``messages``, and forget what came after it.

        A reply that is still coming is given up. After a change of one's own words,
        ``regenerate()`` asks for a new one.

        Raises:
            ParameterError: there is no such message.
        """
        count = len(self._messages)
        if not -count <= index < count:
            raise ParameterError(f"index={index}: there are {count} messages")
        self._give_up_reply()
        index %= count
        message = {**self._messages[index], "content": as_content(text)}
        message.pop("tool_calls", None)
        self._messages = [*self._messages[:index], message]
        self._results = []

    def reset(self) -> None:
        """Forget the conversation, but not the system message."""
        self._give_up_reply()
        system = self.system
        self._messages = [{"role": "system", "content": system}] if system else []
        self._results = []
        self.dropped = []
        self.last_response = None

    def fork(self, session_id: str | None = None) -> ChatSession:
        """An independent conversation that begins with this one's messages.

        It costs no evaluation: what both have in common is shared in memory.
        """
        branch = ChatSession(self._llm, session_id=session_id, **self._options())
        branch._messages = self.messages
        branch._results = copy.deepcopy(self._results)
        return branch

    # -- life ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, state: bool = True) -> None:
        """Write the conversation to ``path`` (JSON), so that ``load`` can go on with it.

        Args:
            state: also write what the model has in memory beside it (``<path>.state``), so that
                another process need not evaluate the conversation again. It is as large as the
                cache of the conversation.

        Raises:
            StorageError: it cannot be written; an older file is as it was. Also an ``OSError``.
            ParameterError: a text has half of a surrogate pair; an older file is as it was.
        """
        store = self._llm.cache if state else None
        held = {
            "session_id": self.session_id,
            "messages": self._messages,
            "tool_results": self._results,
            "tools": self._tools,
        }
        session_file.save(store, held, path, dict(self._defaults))

    def _options(self) -> TurnOptions:
        """The arguments of a session like this one."""
        return {**self._defaults, "tools": self._tools, "overflow": self.overflow}

    @classmethod
    def load(
        cls,
        llm: ChatModel,
        path: str | os.PathLike[str],
        **defaults: Unpack[TurnOptions],
    ) -> ChatSession:
        """Go on with a saved conversation.

        A state that was made by another model or under other settings, or that is damaged, is not
        used (the log says why): the conversation is then evaluated again with the first reply.

        Args:
            defaults: as for ``ChatSession``. Of them only the tools are saved, and used if none are
                given.

        Raises:
            StateError: the file is not a saved conversation.
            StorageError: it cannot be read, or is not there (then also a ``FileNotFoundError``).
        """
        saved = session_file.load(llm.cache, path)
        options: TurnOptions = {"tools": saved["tools"], **defaults}
        session = cls(llm, session_id=saved["session_id"], **options)
        session._messages = saved["messages"]
        session._results = saved["tool_results"]
        return session

    def reopen(self, path: str | os.PathLike[str]) -> ChatSession:
        """``load`` with this session's model, overflow policy and options."""
        options = self._options()
        options.pop("tools", None)  # those of the file
        return ChatSession.load(self._llm, path, **options)

    def close(self) -> None:
        """End the session. The model, and what it has cached, stay."""
        self._give_up_reply()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ChatSession({self.session_id!r}, {len(self._messages)} messages)"


def _check_options(options: Mapping[str, Any]) -> None:
    for name in _OWN:
        if name in options:
            raise ParameterError(f"{name} cannot be set here: the session does")
