"""``Snapshots``: copies of conversations under names of the caller's."""

from __future__ import annotations

import logging
from typing import Any

from llama_py.api.kept.states import LlamaState, SnapshotInfo, States
from llama_py.api.port import ModelPort
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.params import check_number

__all__ = ["Snapshots", "check_slots"]

_log = logging.getLogger("llama_py")

#: Most named snapshots that can be kept.
MAX_SLOTS = 8


def check_slots(slots: Any) -> int:
    """``prefix_cache_slots``, clamped."""
    check_number("prefix_cache_slots", slots, 0, integer=True)
    if slots > MAX_SLOTS:
        _log.warning("prefix_cache_slots=%d is clamped to %d", slots, MAX_SLOTS)
    return min(int(slots), MAX_SLOTS)


class Snapshots:
    """See the module. They are changed in the engine's thread, and a change replaces the table:
    whoever reads it meanwhile reads the old one.
    """

    def __init__(self, port: ModelPort, states: States, slots: int) -> None:
        self._port = port
        self._states = states
        self._slots = slots
        self._table: dict[str, LlamaState] = {}  # least recently used first

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(state.nbytes for state in self._table.values())

    def take(self, name: str, length: int | None) -> SnapshotInfo:
        """See ``ModelCache.snapshot``."""
        _check_name(name)
        if not self._slots:
            raise ParameterError("snapshots are off; load the model with prefix_cache_slots > 0")
        state = self._states.save(length)
        self._port.here().driver.run(lambda: self._use(name, state))
        return _info(name, state)

    def _use(self, name: str, state: LlamaState) -> None:
        kept = {other: old for other, old in self._table.items() if other != name}
        while len(kept) >= self._slots:
            gone = next(iter(kept))
            del kept[gone]
            _log.info("snapshot %r was dropped: all %d slots are taken", gone, self._slots)
        self._table = {**kept, name: state}

    def restore(self, name: str) -> SnapshotInfo:
        """See ``ModelCache.restore``."""
        self._port.here().driver.check()
        state = self.get(name)
        self._states.load(state)
        self._port.here().driver.run(lambda: self._use(name, state))
        return _info(name, state)

    def get(self, name: str) -> LlamaState:
        """The snapshot of this name.

        Raises:
            ParameterError: there is none.
        """
        _check_name(name)
        state = self._table.get(name)
        if state is None:
            known = ", ".join(map(repr, self._table)) or "none"
            raise ParameterError(f"there is no snapshot {name!r}; there are: {known}")
        return state

    def list(self) -> list[SnapshotInfo]:
        """The snapshots, least recently used first."""
        return [_info(name, state) for name, state in self._table.items()]

    def drop(self, name: str) -> None:
        """Forget one, if there is one of that name."""
        _check_name(name)

        def drop() -> None:
            self._table = {other: old for other, old in self._table.items() if other != name}

        self._port.here().driver.run(drop)


def _info(name: str, state: LlamaState) -> SnapshotInfo:
    return SnapshotInfo(name, state.n_tokens, state.nbytes)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise ParameterTypeError(f"name must be a string, not {shown(name)}")
