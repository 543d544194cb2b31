"""Messages between the two processes of a model.

Each message is a tuple that begins with its kind. Calls have numbers, which the process that calls
gives out; requests have numbers of its own, by which events come back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from llama_py.api.facts import ContextFacts
from llama_py.core.host.machine import memory_bytes
from llama_py.engine.request import Event, FinishEvent, Record, TokenEvent, TokenLogprobs

__all__ = [
    "LARGE",
    "STATES",
    "USUAL",
    "Down",
    "Ended",
    "Facts",
    "Row",
    "Up",
    "note_event",
    "row_of",
]

#: Most bytes of a message to the process that calls: of its structure, and of the arrays behind it.
USUAL = (1 << 23, 1 << 28)
#: The same while the answer to one of ``STATES`` is awaited, which may be a whole conversation.
LARGE = (1 << 23, memory_bytes())
STATES = frozenset({"Conversations.export", "Conversations.held", "SequenceStates.of_prompt"})


class Down(IntEnum):
    """To the model's process."""

    LOAD = 1  # path, options, level of the log, what is to be asked before anything else
    SUBMIT = 2  # call, numbers, requests, whole, which want progress, tenant
    CANCEL = 3  # call
    PAUSE = 4  # call
    RESUME = 5  # call
    ASK = 6  # call, name, arguments, tenant
    EMBED = 7  # call, inputs, ranks, tenant
    CLOSE = 8  # nothing more comes
    STOP_LOADING = 9
    PING = 10  # tell that you are alive


class Up(IntEnum):
    """From the model's process."""

    LOADING = 1  # fraction
    READY = 2  # Facts
    FAILED = 3  # the error that loading ended with
    LOG = 4  # level, text
    ANSWER = 5  # call, value
    REFUSED = 6  # call, error
    STARTED = 7  # number, when, what is reused, tokens or None
    PROGRESS = 8  # number, tokens in memory, tokens
    EVENTS = 9  # rows (row_of) of all calls of one step
    ENDS = 10  # the same, some of which are Ended; and the metrics
    VECTORS = 11  # call, index of the input, array
    PONG = 12


@dataclass(frozen=True, slots=True)
class Facts:
    """A model that is ready.

    Attributes:
        context: None if it does not generate.
    """

    context: ContextFacts | None


# ---- events --------------------------------------------------------------------------------------

#: A request's number, and what came for it.
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of a request, and its record by then; see ``FinishEvent`` and ``Record``."""

    event: tuple[str, str, str | None, BaseException | None]
    record: dict[str, Any]


#: What a record has from the engine; ``tokens`` and ``started`` were said before.
_FIELDS = (
    "generated",
    "closed",
    "prompt_logprobs",
    "scored",
    "cache",
    "reason",
    "drafted",
    "accepted",
    "logits",
    "started",
    "first_token",
    "last_token",
    "ended",
)


def row_of(number: int, event: Event, record: Record) -> Row:
    """An event as it crosses; only the last one is more than numbers and texts."""
    if isinstance(event, FinishEvent):
        known = {name: getattr(record, name) for name in _FIELDS}
        return number, Ended((event.reason, event.text, event.stop, event.error), known)
    found = event.logprobs
    if found is None:
        return number, event.token, event.text
    return (
        number,
        event.token,
        event.text,
        found.logprob,
        found.ids.tobytes(),
        found.logprobs.tobytes(),
    )


def note_event(row: Row, record: Record) -> Event:
    """The event of a row, which is entered into the record of its request."""
    if len(row) == 2:
        ended: Ended = row[1]
        for name in _FIELDS:
            setattr(record, name, ended.record[name])
        record.request = record.request.without_callbacks()
        reason, text, stop, error = ended.event
        return FinishEvent(reason, text, stop, error)
    now = time.perf_counter()
    record.generated.append(row[1])
    record.first_token = record.first_token or now
    record.last_token = now
    if len(row) == 3:
        return TokenEvent(row[1], row[2])
    _, token, text, chosen, ids, logprobs = row
    found = TokenLogprobs(chosen, np.frombuffer(ids, np.int32), np.frombuffer(logprobs, np.float32))
    return TokenEvent(token, text, found)
