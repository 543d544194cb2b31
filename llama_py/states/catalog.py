"""``Catalog``: which entries a store has, by fingerprint, tokens, text and session."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from llama_py.states.prefix import PrefixIndex, TextPath
from llama_py.states.state import EntryInfo, Key, StoredMatch

__all__ = ["Catalog"]

#: Entries listed of those that leave a prompt at the same place: they serve it equally well.
_ALIKE = 8


class Catalog:
    """One prefix tree per fingerprint, so that an entry never serves another context."""

    def __init__(self) -> None:
        self._infos: dict[Key, EntryInfo] = {}
        self._trees: dict[str, PrefixIndex[Key]] = {}

    def __len__(self) -> int:
        return len(self._infos)

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._infos))

    def add(
        self,
        info: EntryInfo,
        tokens: NDArray[np.int32],
        offsets: NDArray[np.int64] | None,
        text: bytes | None,
        sources: NDArray[np.uint8] | None,
    ) -> None:
        """List an entry. Adding it again only brings what is known of it up to date."""
        if info.key not in self._infos:
            tree = self._trees.setdefault(info.fingerprint, PrefixIndex())
            tree.insert(info.key, tokens, offsets, text, sources)
        self._infos[info.key] = info

    def remove(self, key: Key) -> None:
        """Forget an entry, if it is listed."""
        info = self._infos.pop(key, None)
        if info is not None:
            tree = self._trees.get(info.fingerprint)
            if tree is not None:
                tree.remove(key)
                if not len(tree):
                    del self._trees[info.fingerprint]

    def clear(self) -> None:
        """Forget all."""
        self._infos.clear()
        self._trees.clear()

    def info(self, key: Key) -> EntryInfo | None:
        """An entry's facts."""
        return self._infos.get(key)

    def find(self, tokens: NDArray[np.int32], fingerprint: str) -> list[StoredMatch]:
        """Entries that share leading tokens, deepest first."""
        return self._matches(tokens, fingerprint, _ALIKE)

    def find_text(self, text: bytes, fingerprint: str) -> TextPath | None:
        """The longest path whose text ``text`` begins with."""
        tree = self._trees.get(fingerprint)
        return tree.match_text(text) if tree else None

    def find_session(self, session: str, fingerprint: str | None) -> list[Key]:
        """Entries of one conversation, longest first; None: of every fingerprint."""
        own = [
            info
            for info in self._infos.values()
            if info.session == session and fingerprint in (None, info.fingerprint)
        ]
        return [info.key for info in sorted(own, key=lambda info: -info.length)]

    def match_foreign(self, tokens: NDArray[np.int32], fingerprint: str) -> dict[str, int]:
        """The most leading tokens shared with an entry of each other fingerprint, if there are."""
        shared = {
            name: tree.match_depth(tokens)
            for name, tree in list(self._trees.items())
            if name != fingerprint
        }
        return {name: depth for name, depth in shared.items() if depth}

    def twins(self, tokens: NDArray[np.int32], fingerprint: str, session: str | None) -> list[Key]:
        """Entries of exactly these tokens, fingerprint and session."""
        return [
            found.key
            for found in self._matches(tokens, fingerprint, 0)
            if found.length == len(tokens) and found.session == session
        ]

    def _matches(
        self, tokens: NDArray[np.int32], fingerprint: str, alike: int
    ) -> list[StoredMatch]:
        tree = self._trees.get(fingerprint)
        found = tree.match_tokens(tokens, side=alike) if tree else []
        # An interrupt may have come between the two: a key without an entry is not an entry.
        infos = ((self._infos.get(key), shared) for key, shared in found)
        return [
            StoredMatch(info.key, shared, info.length, info.pos_min, info.checkpoints, info.session)
            for info, shared in infos
            if info is not None
        ]
