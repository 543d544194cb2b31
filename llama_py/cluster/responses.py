"""``SharedResponses``: replies of ``/v1/responses`` that all replicas know.

A client goes on with the id of a reply, and sends nothing of what was said before. So if only the
replica that gave it knew that, the conversation would end with it. Here each reply is written to
the database beside the stored states as well, and looked for there if it is not in memory. Owners
are kept apart as in memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_py.dialects.responses.items import InputHistory, Item
from llama_py.server.kept.response_store import ResponseStore
from llama_py.states.database import DATABASE_ERRORS
from llama_py.states.names import Names
from llama_py.states.writer import Writer

__all__ = ["SharedResponses"]

_log = logging.getLogger("llama_py.server")

#: Items of a reply that are found by their own ids, on average.
_ITEMS = 8
#: Seconds that ``close`` waits for the disk.
_PATIENCE = 10.0


class SharedResponses(ResponseStore):
    """See the module. May be used from several threads.

    Args:
        path: the database.
        most, most_bytes, seconds: as in ``ResponseStore``. On the disk there are ``most`` at most.
    """

    def __init__(self, path: Path, most: int, most_bytes: int, seconds: float) -> None:
        super().__init__(most, most_bytes, seconds)
        self._names = Names(path, "response")
        #: Which reply each item is in.
        self._items = self._names.of_kind("response item")
        self._writer = Writer()
        self._limits = most, most_bytes, seconds

    def find(self, owner: str, response_id: str) -> Any:
        """A reply; None if no replica has it (any more)."""
        found = super().find(owner, response_id)
        if found is None and self._bring_in(owner, response_id):
            found = super().find(owner, response_id)
        return found

    def find_item(self, owner: str, item_id: str) -> Item | None:
        """An item of a reply; None if no replica has it (any more)."""
        found = super().find_item(owner, item_id)
        if found is None:
            for data in self._read(self._items, owner, item_id):
                if self._bring_in(owner, str(data.get("response"))):
                    found = super().find_item(owner, item_id)
        return found

    def put(self, owner: str, response: Mapping[str, Any], conversation: InputHistory) -> None:
        """Store a reply. Nobody waits for the disk."""
        super().put(owner, response, conversation)
        most, most_bytes, seconds = self._limits
        if not most or conversation.size > most_bytes:
            return
        data = {
            "response": dict(response),
            "items": [dict(item) for item in conversation.items],
            "size": conversation.size,
            "until": time.time() + seconds,
        }
        self._writer.submit(lambda: self._write(owner, data))

    def delete(self, owner: str, response_id: str) -> bool:
        """Forget a reply, for all replicas; False if it is not there."""
        here = super().delete(owner, response_id)
        self._writer.wait(0, _PATIENCE)
        try:
            return self._names.drop(owner, response_id) or here
        except DATABASE_ERRORS as error:
            _log.warning("a response could not be forgotten: %s", error)
            return here

    def close(self) -> None:
        """Write what is not written yet."""
        self._writer.wait(0, _PATIENCE)
        self._names.close()

    def _write(self, owner: str, data: Mapping[str, Any]) -> None:
        try:
            with self._names.transaction():
                name = data["response"]["id"]
                self._names.put(owner, name, data)
                self._names.trim(self._limits[0])
                for item in data["response"].get("output", ()):
                    self._items.put(owner, item["id"], {"response": name})
                self._items.trim(self._limits[0] * _ITEMS)
        except DATABASE_ERRORS as error:
            _log.warning("a response could not be written: %s", error)

    def _bring_in(self, owner: str, response_id: str) -> bool:
        """Take over what another replica has written; False if there is no such thing."""
        for data in self._read(self._names, owner, response_id):
            if data.get("until", 0) > time.time():
                history = InputHistory(tuple(data["items"]), data["size"])
                super().put(owner, data["response"], history)
                return True
        return False

    def _read(self, names: Names, owner: str, name: str) -> list[dict[str, Any]]:
        try:
            return names.find(owner, name)
        except DATABASE_ERRORS as error:
            _log.warning("the responses cannot be read: %s", error)
            return []
