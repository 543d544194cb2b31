"""``SlotFiles``: the directory that slots are saved in, and restored from.

Clients choose the names of the files, so nothing but a plain name leads anywhere: a file lies
directly in the folder of its owner, is a regular file, and is never reached through a link. What is
read is checked before a model sees it (``states.whole``).
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import threading
from pathlib import Path
from typing import Any

from llama_py.dialects.failures import Kind, RequestError
from llama_py.errors import StateError, shown
from llama_py.regular_files import open_regular
from llama_py.states.state import StoredState
from llama_py.states.whole import read_whole, write_whole

__all__ = ["SlotFiles", "check_filename"]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
#: In the names of folders and of unfinished files, and in no name that a client may choose.
_OURS = "~"
#: Windows has neither; there, the type of a file is looked at before it is opened.
_CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
#: What the head of a file may take beside the state: its tokens are counted already.
_HEAD = 64 << 10


def check_filename(value: Any, field: str = "filename") -> str:
    """A plain name that a client chose: of a slot's file, or of a snapshot.

    Raises:
        RequestError: it is missing, or no plain name.
    """
    if value is None:
        raise RequestError(Kind.MISSING, f"the field {field!r} is missing", field)
    if not isinstance(value, str) or not _NAME.fullmatch(value) or not value.strip("."):
        message = (
            f"{field}={shown(value, 40)} must be 1 to 128 of the characters A-Z a-z 0-9 . _ - "
            "and not only dots"
        )
        raise RequestError(Kind.INVALID_VALUE, message, field)
    return value


def _refused(message: str, code: str | None = None) -> RequestError:
    return RequestError(Kind.INVALID_VALUE, message, "filename", code=code)


class SlotFiles:
    """See the module. May be used by any thread.

    Args:
        directory: made if it is not there.
        capacity_bytes: what the files of one owner may take.
    """

    def __init__(self, directory: Path, capacity_bytes: int) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory.resolve()
        self._capacity = capacity_bytes
        self._lock = threading.Lock()

    def save(self, tenant: str, name: str, state: StoredState) -> int:
        """Write a state, in place of an older file of this name; its bytes.

        Raises:
            RequestError: the name leads elsewhere, or there is no room.
        """
        with self._lock:
            folder = self._folder(tenant)
            path = self._path(folder, name)
            self._check_room(folder, path, state.nbytes + _HEAD)
            new = folder / f"{name}{_OURS}{secrets.token_hex(8)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFULLY
            try:
                with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
                    write_whole(file, state)
                written = new.stat().st_size
                new.replace(path)
            except OSError as error:
                reason = error.strerror or "the disk failed"
                message = f"the slot {name!r} could not be written: {reason}"
                raise RequestError(Kind.INTERNAL, message) from error
            finally:
                new.unlink(missing_ok=True)
            return written

    def read(self, tenant: str, name: str) -> tuple[StoredState, int]:
        """A state that was saved, and the bytes of its file.

        Raises:
            RequestError: there is no such file, it is damaged, or the name leads elsewhere.
        """
        path = self._path(self._folder(tenant), name)
        try:
            opened = open_regular(path, follow=False)
        except FileNotFoundError:
            message = f"there is no saved slot {name!r}"
            raise RequestError(Kind.NOT_FOUND, message, "filename") from None
        except OSError as error:
            raise _refused(f"filename={name!r} cannot be read: {error.strerror}") from None
        with opened as file:
            try:
                return read_whole(file, Path(name)), os.fstat(file.fileno()).st_size
            except (StateError, OSError, MemoryError) as error:
                raise _refused(f"the saved slot cannot be used: {error}") from None

    def _folder(self, tenant: str) -> Path:
        """That of an owner, which nobody can name."""
        if not tenant:
            return self._directory
        digest = hashlib.blake2b(tenant.encode(), digest_size=12).hexdigest()
        folder = self._directory / f"{_OURS}{digest}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise _refused("the folder for the slots of this key is not usable")
        return folder

    def _path(self, folder: Path, name: str) -> Path:
        path = folder / check_filename(name)
        if path.parent != folder or path.name != name:
            raise _refused(f"filename={name!r} leads out of its directory")
        try:
            kind = path.lstat().st_mode
        except FileNotFoundError:
            return path
        if not stat.S_ISREG(kind):
            raise _refused(f"filename={name!r} is not a regular file")
        return path

    def _check_room(self, folder: Path, path: Path, nbytes: int) -> None:
        with os.scandir(folder) as entries:
            sizes = {
                entry.name: entry.stat(follow_symlinks=False).st_size
                for entry in entries
                if entry.is_file(follow_symlinks=False)
            }
        sizes.pop(path.name, None)
        if sum(sizes.values()) + nbytes > self._capacity:
            raise _refused(
                f"saving this slot takes {nbytes} bytes, and there is no room for them among "
                f"{len(sizes)} saved slots; delete some, or give the server more room",
                "slot_quota_exceeded",
            )
