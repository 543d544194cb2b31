"""``ResponseStore``: replies of ``/v1/responses`` that a client may refer to later.

They are kept in memory, for some time, and only as many as there is room for. Each belongs to the
key that asked for it: nobody else finds it. Whoever has the most stored is the first to lose
something.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_py.dialects.responses.items import InputHistory, Item

__all__ = ["ResponseStore", "Responses"]

#: Bytes that a value takes, beside its text.
_AROUND = 64


@dataclass(frozen=True, slots=True)
class _Entry:
    """A reply, and all that was said up to its end.

    Attributes:
        size: of both, in bytes.
        until: when it is too old.
    """

    response: Mapping[str, Any]
    conversation: InputHistory
    size: int
    until: float


@dataclass(slots=True)
class _Shelf:
    """What belongs to one key; what was used last stands at the end."""

    entries: OrderedDict[str, _Entry] = field(default_factory=OrderedDict)
    items: dict[str, Item] = field(default_factory=dict)
    size: int = 0

    def put(self, entry: _Entry) -> None:
        self.entries[entry.response["id"]] = entry
        self.items.update((item["id"], item) for item in entry.response["output"])
        self.size += entry.size

    def drop(self, response_id: str) -> None:
        entry = self.entries.pop(response_id)
        for item in entry.response["output"]:
            self.items.pop(item["id"], None)
        self.size -= entry.size


class ResponseStore:
    """Replies of all clients. May be used from several threads.

    Args:
        most: replies.
        most_bytes: their size, conversations included. One that is larger is not stored.
        seconds: how long a reply is kept.
        clock: the time in seconds.
    """

    def __init__(
        self,
        most: int = 1024,
        most_bytes: int = 128 << 20,
        seconds: float = 24 * 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._most_bytes, self._seconds = most, most_bytes, seconds
        self._clock = clock
        self._shelves: dict[str, _Shelf] = {}
        #: When the next of them is too old, or earlier.
        self._due = math.inf
        self._lock = threading.Lock()

    def of(self, owner: str) -> Responses:
        """The replies that belong to a key, named ``owner``."""
        return Responses(self, owner)

    def __len__(self) -> int:
        with self._lock:
            return self._count()

    @property
    def size(self) -> int:
        """Bytes of everything that is stored."""
        with self._lock:
            return self._size()

    def find(self, owner: str, response_id: str) -> _Entry | None:
        """A reply, None if it is not there (any more)."""
        with self._lock:
            self._forget_old()
            shelf = self._shelves.get(owner)
            entry = None if shelf is None else shelf.entries.get(response_id)
            if shelf is not None and entry is not None:
                shelf.entries.move_to_end(response_id)
            return entry

    def find_item(self, owner: str, item_id: str) -> Item | None:
        """An item of a reply, None if it is not there (any more)."""
        with self._lock:
            self._forget_old()
            shelf = self._shelves.get(owner)
            return None if shelf is None else shelf.items.get(item_id)

    def put(self, owner: str, response: Mapping[str, Any], conversation: InputHistory) -> None:
        """Store a reply, and let go of others for it."""
        size = conversation.size + size_of({**response, "output": None})  # which it ends with
        entry = _Entry(response, conversation, size, self._clock() + self._seconds)
        if size > self._most_bytes or not self._most:
            return
        with self._lock:
            self._forget_old()
            self._shelves.setdefault(owner, _Shelf()).put(entry)
            self._due = min(self._due, entry.until)
            while self._count() > self._most or self._size() > self._most_bytes:
                largest = max(self._shelves, key=lambda each: self._shelves[each].size)
                self._drop(largest, next(iter(self._shelves[largest].entries)))

    def delete(self, owner: str, response_id: str) -> bool:
        """Forget a reply; False if it is not there."""
        with self._lock:
            shelf = self._shelves.get(owner)
            if shelf is None or response_id not in shelf.entries:
                return False
            self._drop(owner, response_id)
            return True

    # -- with the lock held -----------------------------------------------------------------------

    def _size(self) -> int:
        return sum(shelf.size for shelf in self._shelves.values())

    def _drop(self, owner: str, response_id: str) -> None:
        shelf = self._shelves[owner]
        shelf.drop(response_id)
        if not shelf.entries:
            del self._shelves[owner]

    def _forget_old(self) -> None:
        now = self._clock()
        if now < self._due:
            return
        old = [
            (owner, response_id)
            for owner, shelf in self._shelves.items()
            for response_id, entry in shelf.entries.items()
            if entry.until <= now
        ]
        for owner, response_id in old:
            self._drop(owner, response_id)
        kept = (each for shelf in self._shelves.values() for each in shelf.entries.values())
        self._due = min((each.until for each in kept), default=math.inf)

    def _count(self) -> int:
        return sum(len(shelf.entries) for shelf in self._shelves.values())


class Responses:
    """The replies that belong to one key (see ``dialects.responses.parse.History``)."""

    def __init__(self, store: ResponseStore, owner: str) -> None:
        self._store = store
        self._owner = owner

    def conversation(self, response_id: str) -> InputHistory | None:
        """Everything that was said up to the end of a reply; None if it is not there."""
        entry = self._store.find(self._owner, response_id)
        return None if entry is None else entry.conversation

    def item(self, item_id: str) -> Item | None:
        """An item of a reply; None if it is not there."""
        return self._store.find_item(self._owner, item_id)

    def keep(self, earlier: InputHistory, new: Sequence[Item], response: Mapping[str, Any]) -> None:
        """Store a reply.

        Args:
            earlier: what was stored already of the conversation that it answers.
            new: the rest of it.
        """
        added = (*new, *response["output"])
        size = earlier.size + sum(map(size_of, added))
        self._store.put(self._owner, response, InputHistory((*earlier.items, *added), size))

    def response(self, response_id: str) -> Mapping[str, Any] | None:
        """A reply; None if it is not there."""
        entry = self._store.find(self._owner, response_id)
        return None if entry is None else entry.response

    def input_items(self, response_id: str) -> Sequence[Item] | None:
        """What a reply answers, earlier turns included; None if it is not there."""
        entry = self._store.find(self._owner, response_id)
        if entry is None:
            return None
        items = entry.conversation.items
        return items[: len(items) - len(entry.response["output"])]

    def delete(self, response_id: str) -> bool:
        """Forget a reply; False if it is not there."""
        return self._store.delete(self._owner, response_id)


def size_of(value: Any) -> int:
    """About how many bytes a value of JSON takes in memory."""
    total, rest = 0, [value]
    while rest:  # and not by recursion: how deep a body may be is a setting
        each = rest.pop()
        total += _AROUND
        if isinstance(each, str):
            total += len(each) if each.isascii() else 4 * len(each)
        elif isinstance(each, Mapping):
            rest += each
            rest += each.values()
        elif isinstance(each, (list, tuple)):
            rest += each
    return total
