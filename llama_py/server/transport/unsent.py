"""``bounded_patience``: uvicorn's protocol, which does not wait for ever for a client to read.

What is sent waits in memory for as long as the client does not read, and so does the request. A
connection that was closed waits for it as well. ``streaming`` sees this for streams, and ends their
requests; here it ends the connection, whatever was asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["bounded_patience"]


class _Patient:
    """Goes before a protocol of uvicorn's.

    It looks only while nothing more is written, because there is no room or nothing to come: then
    what is unsent becomes less if anybody reads.

    Attributes:
        patience: seconds in which a client has to read something.
    """

    patience: float
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unsent = 0
        self._unsent_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """There is no room for more."""
        super().pause_writing()  # type: ignore[misc]
        self._begin_to_look()

    def resume_writing(self) -> None:
        """There is again."""
        super().resume_writing()  # type: ignore[misc]
        if not self.transport.is_closing():
            self._stop_looking()

    def on_response_complete(self) -> None:
        """A request was answered, which may have been the last one."""
        super().on_response_complete()  # type: ignore[misc]
        self._look_if_closing()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for a while."""
        super().timeout_keep_alive_handler()  # type: ignore[misc]
        self._look_if_closing()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._stop_looking()
        super().connection_lost(error)  # type: ignore[misc]

    def _look_if_closing(self) -> None:
        if self.transport.is_closing():
            self._begin_to_look()

    def _begin_to_look(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        if self._unsent and self._unsent_timer is None:
            self._unsent_timer = self.loop.call_later(self.patience, self._look)

    def _look(self) -> None:
        before, self._unsent_timer = self._unsent, None
        if self.transport.get_write_buffer_size() < before:
            self._begin_to_look()
        else:
            self.transport.abort()

    def _stop_looking(self) -> None:
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()
            self._unsent_timer = None


def bounded_patience(protocol: type[Any], seconds: float) -> type[Any]:
    """A protocol of uvicorn's that ends connections whose client has read nothing for so long."""
    return type("Patient", (_Patient, protocol), {"patience": seconds})
