"""``ResponsesReply``: what the engine generates, as a response of the Responses API and events."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_py.chat.rendered import RenderedChat
from llama_py.chat.stream import ChatStream, Delta, ToolCallDelta
from llama_py.chat.vocab import VocabLike
from llama_py.dialects.failures import Failure
from llama_py.dialects.logprobs import LogprobEntry, LogprobQueue, chat_logprobs, reply_piece
from llama_py.dialects.openai.types import Timings
from llama_py.dialects.responses.items import CALL_ID
from llama_py.dialects.responses.output import (
    CustomCallItem,
    Frames,
    FunctionCallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
)
from llama_py.dialects.responses.tools import Tools
from llama_py.dialects.usage import PromptProgress, make_timings
from llama_py.dialects.wire_json import DONE, json_bytes
from llama_py.engine.request import Event, Record, TokenEvent

__all__ = ["AskedResponse", "ResponsesReply"]

#: What a response is that ended for another reason than its model's: cut off, or by its client.
_STATUSES = {"length": "incomplete", "cancelled": "cancelled"}
#: Ids as we and some models make them: each is used once.
_UNIQUE = re.compile(r"[A-Za-z0-9]{9}")


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """The fields of a request that the reply depends on.

    Attributes:
        id: of the response.
        fields: members of every ``response`` that repeat the request.
        tools: the tools, by the names under which the model knows them.
        stream: events are wanted.
        logprobs: so are log-probabilities,
        summary: a summary of the reasoning,
        seal: and the reasoning in encrypted form.
        timings: events say what the reply has taken by then.
        keep: called with the response when it is complete.
    """

    id: str
    fields: Mapping[str, Any]
    tools: Tools
    stream: bool = False
    logprobs: bool = False
    summary: bool = False
    seal: bool = False
    timings: bool = False
    keep: Callable[[Mapping[str, Any]], None] | None = None


class ResponsesReply:
    """Encodes one reply (see ``dialects.wire.WireReply``).

    Args:
        records: what is known of its request; nothing if that was never queued.
        rendered: the prompt that is continued.
    """

    def __init__(
        self,
        asked: AskedResponse,
        records: Sequence[Record],
        vocab: VocabLike,
        rendered: RenderedChat,
    ) -> None:
        self._asked = asked
        self._record = records[0] if records else None
        self._vocab = vocab
        self._head = {"id": asked.id, "object": "response", "created_at": int(time.time())}
        self._frames = Frames(asked.stream)
        self._begun = b""
        self._stream = ChatStream(rendered)
        self._items: list[OutputItem] = []
        self._call = -1
        self._reason = ""
        self._written = self._reasoning_tokens = 0
        self._queue: LogprobQueue | None = None
        if asked.logprobs and self._record is not None:
            self._queue = LogprobQueue(reply_piece(vocab, self._record.request))
        #: Log-probabilities of tokens whose text is not told yet.
        self._news: list[LogprobEntry] = []

    # -- frames ----------------------------------------------------------------------------------

    def open(self) -> bytes:
        """``response.created`` and ``response.in_progress``."""
        self._begun = b'"response":' + json_bytes(self._response("in_progress"))
        self._frames.add_raw(b"response.created", self._begun)
        return self.keep_alive()

    def keep_alive(self) -> bytes:
        """``response.in_progress``: clients do not count comments."""
        self._frames.add_raw(b"response.in_progress", self._begun)
        return self._frames.take()

    def progress(self, progress: PromptProgress) -> bytes:
        """``response.in_progress`` with more members, as llama-server sends it."""
        members = self._begun + b',"prompt_progress":' + json_bytes(progress.told())
        if self._asked.timings:
            members += b',"timings":' + json_bytes(progress.timings())
        self._frames.add_raw(b"response.in_progress", members)
        return self._frames.take()

    def feed(self, index: int, event: Event) -> bytes:
        """The events that come of one of the engine's."""
        if isinstance(event, TokenEvent):
            self._written += 1
            if self._queue is not None:
                self._queue.add(event.token, event.logprobs)
                self._news += self._queue.release(len(event.text))
            if event.text:
                deltas = self._stream.feed(event.text)
                self._reasoning_tokens += self._stream.thinks
                self._tell(deltas)
        else:
            if self._queue is not None:
                self._news += self._queue.finish(len(event.text), stopped=event.stop is not None)
            self._tell(self._stream.feed(event.text) + self._stream.flush())
            self._reason = event.reason
            if event.error is None:
                silent = all(isinstance(item, ReasoningItem) for item in self._items)
                if event.reason == "stop" and silent:
                    self._message()  # clients look for the last message
                self._end_item("incomplete" if event.reason in _STATUSES else "completed")
        if self._asked.timings:
            self._frames.add_to_last("timings", self._timings())
        return self._frames.take()

    def close(self) -> bytes:
        """``response.completed``, or ``response.incomplete``, also if it was cancelled.

        Then comes the line that Open Responses demands at the end. OpenAI sends none; clients of
        both know it from chat completions.
        """
        response = self._ended()
        kind = "completed" if response["status"] == "completed" else "incomplete"
        self._frames.add(f"response.{kind}", {"response": response})
        if self._asked.timings:
            self._frames.add_to_last("timings", self._timings())
        return self._frames.take() + DONE

    def fail(self, failure: Failure) -> bytes:
        """``response.failed``, with what there was until then."""
        if self._items and self._items[-1].status == "in_progress":
            self._items[-1].status = "incomplete"
        error = {"code": failure.code or failure.kind.value, "message": failure.message}
        response = self._response("failed", error=error)
        self._frames.add("response.failed", {"response": response})
        return self._frames.take() + DONE

    def whole(self) -> dict[str, Any]:
        """The response without a stream."""
        return self._ended()

    # -- the response ----------------------------------------------------------------------------

    def _ended(self) -> dict[str, Any]:
        response = self._response(_STATUSES.get(self._reason, "completed"))
        if self._asked.keep is not None and self._reason in ("stop", "length"):
            self._asked.keep(response)
        return response

    def _response(self, status: str, error: Mapping[str, str] | None = None) -> dict[str, Any]:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        record, written, usage = self._record, self._written, None
        if record is not None and status != "in_progress":
            usage = {
                "input_tokens": record.n_prompt,
                "input_tokens_details": {"cached_tokens": record.reused, "cache_write_tokens": 0},
                "output_tokens": written,
                "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
                "total_tokens": record.n_prompt + written,
            }
        return {
            **self._head,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": error,
            "incomplete_details": details,
            "output": [item.value() for item in self._items],
            "usage": usage,
            **self._asked.fields,
        }

    def _timings(self) -> Timings | None:
        return None if self._record is None else make_timings([self._record], self._written)

    # -- deltas to items ---------------------------------------------------------------------------

    def _tell(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            if delta.tool_call is not None:
                self._news.clear()
                self._tell_call(delta.tool_call)
            elif delta.reasoning:
                self._news.clear()
                last = self._items[-1] if self._items else None
                if not isinstance(last, ReasoningItem):
                    seal, summary = self._asked.seal, self._asked.summary
                    last = ReasoningItem(
                        self._frames, len(self._items), summarised=summary, seal=seal
                    )
                    self._add(last)
                last.add(delta.reasoning)
            elif delta.content:
                news, self._news = self._news, []
                # What stood before the tokens of the text were marks of the format.
                while len(news) > 1 and news[-1].end - news[0].start > len(delta.content):
                    news.pop(0)
                logprobs = [*(chat_logprobs(self._vocab, news)["content"] or [])] if news else []
                self._message().add(delta.content, logprobs)

    def _tell_call(self, call: ToolCallDelta) -> None:
        if call.index != self._call:
            self._call = call.index
            target = self._asked.tools.target(call.name or "")
            kind = CustomCallItem if target.custom else FunctionCallItem
            call_id = call.id or ""
            # Some models count their calls from 0 in each reply: such an id gets letters of ours.
            letters = "" if _UNIQUE.fullmatch(call_id) else f"{secrets.token_hex(6)}_"
            public_id = f"{CALL_ID}{letters}{call_id}"
            self._add(kind(self._frames, len(self._items), target, public_id))
        item = self._items[-1]
        if isinstance(item, (CustomCallItem, FunctionCallItem)):
            item.add(call.arguments)

    def _message(self) -> MessageItem:
        last = self._items[-1] if self._items else None
        if not isinstance(last, MessageItem):
            last = MessageItem(self._frames, len(self._items))
            self._add(last)
        return last

    def _add(self, item: OutputItem) -> None:
        self._end_item("completed")
        self._items.append(item)
        item.begin()

    def _end_item(self, status: str) -> None:
        if self._items and self._items[-1].status == "in_progress":
            self._items[-1].end(status)
