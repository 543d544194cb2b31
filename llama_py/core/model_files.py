"""``ModelFiles``: which bytes a model was loaded from.

Saved states belong to weights, so the weights are identified when they are loaded: the files may be
replaced or deleted at any later time, and what is in memory stays what it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from llama_py.errors import InvalidModelError, ModelChangedError

__all__ = ["ModelFiles"]

#: How much of each file the digest looks at, beside its header: places, and bytes at each.
_SAMPLES, _SAMPLE_BYTES = 64, 4096
#: Bytes of a header that are read at once: a whole one would be megabytes of new memory.
_PIECE = 1 << 17

_Identity = tuple[tuple[int, int], tuple[int, int]]


class ModelFiles:
    """The parts of a model (just one, as a rule), as they are when this object is made.

    Make it before llama.cpp opens them, and ask ``check`` when it has.

    Args:
        places: for each part, where its header ends (all up to there is read) and where each of
            its tensors begins.

    Attributes:
        digest: of the header, the beginning of every tensor, and samples from the whole length of
            each part; it does not depend on where they lie.
    """

    def __init__(self, places: Mapping[Path, tuple[int, ...]]) -> None:
        self._places = places
        self._parts = {path: _read(path, inside) for path, inside in places.items()}
        digest = hashlib.blake2b(digest_size=16)
        for content, _ in self._parts.values():
            digest.update(content)
        self.digest = digest.hexdigest()

    def check(self) -> None:
        """Raise ``InvalidModelError`` if llama.cpp may have opened other files.

        Files that are gone now were there, and opened.
        """
        for path, (content, (version, number)) in self._parts.items():
            with contextlib.suppress(FileNotFoundError):
                now, renumbered = _identity(path.stat())
                same = now == version and (
                    # Some file systems number their files anew: then the content decides.
                    renumbered == number or _read(path, self._places[path])[0] == content
                )
                if not same:
                    raise InvalidModelError(
                        f"{path} was replaced or changed while it was being loaded; load it again"
                    )

    def check_in_place(self) -> None:
        """Raise ``ModelChangedError`` if a file was truncated or written to since it was loaded.

        It costs a ``stat`` for each part. One that is gone, or that another one was renamed over,
        is still there for those who have it open; of one that was just touched, what the digest
        looks at is read once.
        """
        for path, (content, (version, number)) in self._parts.items():
            try:
                now, renumbered = _identity(path.stat())
            except OSError:
                continue
            if renumbered != number or now == version:
                continue
            same = now[0] == version[0]
            if same:  # in size; only touched, perhaps
                try:
                    same = _read(path, self._places[path])[0] == content
                except OSError:
                    same = False
            if not same:
                raise ModelChangedError(
                    f"{path} was truncated or written to after it was loaded, and its weights are "
                    "read from there: close (unload) the model and load it again; replace model "
                    "files by renaming"
                )
            self._parts[path] = content, (now, number)


def _identity(status: os.stat_result) -> _Identity:
    """Which version of a file it is, and which file."""
    return (status.st_size, status.st_mtime_ns), (status.st_dev, status.st_ino)


def _read(path: Path, inside: tuple[int, ...]) -> tuple[bytes, _Identity]:
    """The digest of one part, and the identity of what was read."""
    digest, (data, *tensors) = hashlib.blake2b(digest_size=16), inside
    with path.open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        spread = [status.st_size * index // _SAMPLES for index in range(_SAMPLES)]
        while data > 0 and (piece := file.read(min(data, _PIECE))):
            digest.update(piece)
            data -= len(piece)
        for place in (*tensors, *spread):
            file.seek(place)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest(), _identity(status)
