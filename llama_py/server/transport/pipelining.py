"""``one_at_a_time``: uvicorn's protocol, which notices leaving also of clients that send ahead.

HTTP lets a client send its next request before the answer to the one before. uvicorn stops reading
then, and takes the last request that came for the one that is being answered; so nobody learns that
the client has left, and the model goes on for nobody. Here what comes meanwhile is kept aside and
parsed afterwards, and everything that is unanswered ends with the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

__all__ = ["one_at_a_time"]

#: Bytes sent ahead beyond which nothing more is read before the answer.
_MOST_AHEAD = 64 << 10


class _OneAtATime:
    """Goes before a protocol of uvicorn's, and before whatever else does."""

    transport: asyncio.Transport
    flow: Any
    cycle: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        #: Requests that were parsed and are not answered, the one that is being answered first.
        self._open: list[Any] = []
        self._ahead: deque[bytes] = deque()

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        if self._answers():
            self._ahead.append(data)
            if sum(map(len, self._ahead)) > _MOST_AHEAD:
                self.flow.pause_reading()
            return
        super().data_received(data)  # type: ignore[misc]
        if self._answers():  # several came in one piece, and uvicorn has stopped reading
            self.flow.resume_reading()

    def on_headers_complete(self) -> None:
        """Called by httptools, which parses all that comes in one piece. h11 stops by itself."""
        super().on_headers_complete()  # type: ignore[misc]
        self._open = [each for each in self._open if not each.response_complete]
        if self.cycle is not None and self.cycle not in self._open:
            self._open.append(self.cycle)

    def on_response_complete(self) -> None:
        """A request was answered: the next one begins."""
        super().on_response_complete()  # type: ignore[misc]
        while self._ahead and not self._answers() and not self.transport.is_closing():
            self.data_received(self._ahead.popleft())

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone, and waits for none of its answers."""
        self._ahead.clear()
        for each in self._open:
            if not each.response_complete:
                each.disconnected = True
                each.message_event.set()
        super().connection_lost(error)  # type: ignore[misc]

    def _answers(self) -> bool:
        """Whether a request is there as a whole, and its answer is not."""
        left = [each for each in self._open if not each.response_complete]
        cycle = left[0] if left else self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body


def one_at_a_time(protocol: type[Any]) -> type[asyncio.Protocol]:
    """A protocol of uvicorn's under which one request of a connection is looked at at a time."""
    return type("OneAtATime", (_OneAtATime, protocol), {})
