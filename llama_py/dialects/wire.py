"""A dialect on the wire: a call that was parsed, and the bytes of its reply.

A dialect's ``parse`` makes a ``WireCall`` of a request's body, in a worker thread. Its
``WireReply`` belongs to one task of an event loop, which feeds it the engine's events and sends
what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llama_py.dialects.failures import Failure
from llama_py.dialects.usage import PromptProgress
from llama_py.engine.request import Event, GenerationRequest, Record

__all__ = ["WireCall", "WireReply"]


class WireReply(Protocol):
    """Encodes one reply, whole or as a stream. Bytes are complete frames; ``b""`` is none."""

    def open(self) -> bytes:
        """Frames that come first, before the request waits for its turn."""

    def feed(self, index: int, event: Event) -> bytes:
        """Frames for an event of a request.

        The ``FinishEvent`` of a request that failed comes as well, because it may have text; it is
        followed by ``fail``, and not by ``close``.
        """

    def progress(self, progress: PromptProgress) -> bytes:
        """A frame that says how much of the prompt is done, if the client asked for that.

        The first one comes before anything is evaluated.
        """

    def keep_alive(self) -> bytes:
        """A frame that says that the server is still there."""

    def close(self) -> bytes:
        """Frames after the last event of a reply that ended well."""

    def fail(self, failure: Failure) -> bytes:
        """Frames that end a stream with an error, at any time after ``open``."""

    def whole(self) -> Any:
        """The reply without a stream, when its last event was fed: an object of JSON, or a text."""


@dataclass(slots=True)
class WireCall:
    """A call that was checked and rendered, and can be submitted.

    Attributes:
        requests: what the engine is asked for; the index of each is that of its events.
        stream: the client wants frames.
        encoder: makes the reply, once the requests are submitted.
        wants_progress: the client asked to be told how much of the prompt is done.
        overflows_in_stream: a stream whose prompt is too long begins, and fails; its encoder gets
            no records then. Otherwise that is an error with a status of its own.
        id: of the response, by which it may be cancelled; "" if it has none.
    """

    requests: list[GenerationRequest]
    stream: bool
    encoder: Callable[[Sequence[Record]], WireReply]
    wants_progress: bool = False
    overflows_in_stream: bool = False
    id: str = ""
