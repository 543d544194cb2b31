"""Whether something was lost since a model began to use it, by C's counts of losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from llama_py.errors import DeviceLostError

__all__ = ["LossWatch"]


class LossWatch(ABC):
    """Compares counts with those from before. See ``lost_devices.DeviceWatch``.

    Args:
        count: C's function: how often this was lost; with None, how often anything was.
        watched: name -> what ``count`` is asked for.
    """

    def __init__(self, count: Any, watched: Mapping[str, Any]) -> None:
        self.lost = ""
        self._count, self._watched = count, watched
        self._all = int(count(None))
        self._before = {name: int(count(each)) for name, each in watched.items()}

    def check(self) -> None:
        """Raise ``DeviceLostError`` if one was lost; some hundred nanoseconds."""
        if not self.lost and self._count(None) == self._all:
            return
        self._all = int(self._count(None))
        for name, before in self._before.items():
            if not self.lost and self._count(self._watched[name]) != before:
                self.lost = name
        if self.lost:
            raise DeviceLostError(self._reason(self.lost))

    @abstractmethod
    def _reason(self, name: str) -> str:
        """The outcome, and the remedy."""
