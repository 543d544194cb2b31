"""``VectorCache``: vectors of inputs in a directory, for all processes that embed with a model.

The locks between processes, the transactions and the choice of those longest unused are those of
``diskcache``. By itself it pickles values of other types and unpickles whatever its table calls a
pickle (CVE-2025-69872), and it opens and removes the files that its table names. Here a value is a
sum and the float32 of a vector, in a column, and nothing else is read.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import diskcache
import numpy as np

from llama_py.embeddings.inputs import Input
from llama_py.embeddings.pooling import Rows
from llama_py.errors import ParameterError, StateError

__all__ = ["VectorCache"]

_log = logging.getLogger("llama_py")

T = TypeVar("T")

_SUM_BYTES = 16
#: Seconds that a call waits for other processes, and entries of one transaction.
_PATIENCE, _AT_ONCE = 5.0, 256
_SETTINGS: dict[str, Any] = {
    "eviction_policy": "least-recently-used",
    "cull_limit": 0,  # a transaction would remove more than it has to: the file shrinks at its end
    "statistics": 0,
    "tag_index": 0,
    "sqlite_trusted_schema": 0,
}
_RAW, _PICKLE = 1, 4


class _Disk(diskcache.Disk):  # type: ignore[misc]
    """Keys and values are bytes in the table: no pickles, and no files."""

    def put(self, key: bytes) -> tuple[sqlite3.Binary, bool]:
        return sqlite3.Binary(key), True

    def get(self, key: Any, raw: bool) -> bytes:
        return bytes(key) if raw and isinstance(key, bytes) else b""

    def store(self, value: bytes, *_: Any, **__: Any) -> tuple[int, int, None, sqlite3.Binary]:
        return 0, _RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: int, filename: Any, value: Any, read: bool) -> bytes:
        if mode == _PICKLE:
            raise StateError(
                f"{self._directory} has an entry that is a pickle, which no version of llama_py "
                "writes: reading it could run any program; remove the directory, and find out who "
                "can write to it"
            )
        return value if mode == _RAW and isinstance(value, bytes) else b""

    def remove(self, file_path: Any) -> None:
        """Removes nothing: files that the table names are not ours."""


class VectorCache:
    """Vectors of one model, pooled, before they are shortened. Any thread may call it.

    Args:
        directory: made if it is not there.
        capacity_bytes: of the file; those longest unused go.
        identity: whatever the vectors depend on, apart from the input and its pooling.

    Raises:
        ParameterError: the directory cannot be used.
    """

    def __init__(self, directory: str, capacity_bytes: int, identity: object) -> None:
        self._identity = repr(identity)
        try:
            Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._cache = diskcache.Cache(
                directory, _PATIENCE, _Disk, size_limit=capacity_bytes, **_SETTINGS
            )
        except (OSError, TypeError, ValueError, sqlite3.Error, diskcache.Timeout) as error:
            raise ParameterError(
                f"cache={directory!r} cannot keep vectors ({error}); give another directory, or "
                "remove what is in it"
            ) from error
        self._cache.close()

    def keys(self, inputs: Sequence[Input], pooling: str) -> list[bytes | None]:
        """The key of each input; None of those with pictures or sounds, which are not kept."""
        head = f"{self._identity}\0{pooling}\0".encode()
        return [
            hashlib.blake2b(head + each.tobytes(), digest_size=32).digest()
            if isinstance(each, np.ndarray)
            else None
            for each in inputs
        ]

    def read(self, keys: Sequence[bytes | None], table: Rows) -> list[int]:
        """Fill in the rows that are kept; returns the indices of the others.

        Raises:
            StateError: an entry is a pickle. It was not read.
        """
        found = self._each(keys, range(len(keys)), self._cache.get)
        missing = []
        for index, key in enumerate(keys):
            value = found.get(index) or b""
            data = memoryview(value)[_SUM_BYTES:]
            whole = len(data) == table[index].nbytes and value == _signed(key or b"", data)
            if whole:
                table[index] = np.frombuffer(data, np.float32)
            else:
                missing.append(index)
        return missing

    def write(self, keys: Sequence[bytes | None], table: Rows, rows: Sequence[int]) -> None:
        """Keep these rows of the table."""

        def put(key: bytes) -> None:
            self._cache.set(key, _signed(key, table[places[key]].tobytes()))

        places = {key: index for index in rows if (key := keys[index]) is not None}
        self._each(keys, rows, put, grows=True)

    def _each(
        self,
        keys: Sequence[bytes | None],
        rows: Sequence[int],
        do: Callable[[bytes], T],
        *,
        grows: bool = False,
    ) -> dict[int, T]:
        """The results by row, as far as they could be had: without the cache, all is computed."""
        done: dict[int, T] = {}
        try:
            for start in range(0, len(rows), _AT_ONCE):
                with self._cache.transact():
                    for index in rows[start : start + _AT_ONCE]:
                        key = keys[index]
                        if key is not None:
                            done[index] = do(key)
            if grows and rows:
                self._cache.cull()
        except (sqlite3.Error, diskcache.Timeout) as error:
            _log.warning("vectors in %s are not used: %r", self._cache.directory, error)
        finally:
            self._cache.close()  # of this thread, which may end
        return done


def _signed(key: bytes, data: bytes | memoryview) -> bytes:
    """A value: the sum of its key and its vector, and the vector."""
    digest = hashlib.blake2b(key, digest_size=_SUM_BYTES)
    digest.update(data)
    return digest.digest() + data
