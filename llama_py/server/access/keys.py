"""API keys: who a caller is, what he may do, and how much of it.

Keys are compared in constant time: as digests, and with every key there is, so that the time it
takes tells nothing about any of them.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_py.errors import ParameterError, UnknownParameterError, shown
from llama_py.options.checks import check_number, read_text
from llama_py.server.config.setting_readers import read_list

__all__ = [
    "ADMIN",
    "CHAT",
    "HIDDEN",
    "SCOPES",
    "Allowance",
    "ApiKey",
    "Caller",
    "KeyRing",
    "check_keys",
    "key_from_table",
    "read_key_file",
    "single_key",
]

#: Generating, and what belongs to it.
CHAT = "chat"
#: What concerns everybody: metrics, slots, loading and unloading models.
ADMIN = "admin"
SCOPES = frozenset({CHAT, ADMIN})
#: What stands in place of a key where the settings are printed.
HIDDEN = "(hidden)"

_KEY = re.compile(r"[\x21-\x7e]{1,512}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, and what may be done with it.

    Attributes:
        name: of its owner, in logs; sessions belong to this name.
        key: the secret, at most 512 visible ASCII characters.
        scopes: ``"chat"``, ``"admin"``, or both.
        requests_per_minute: as many may come at once, and so many in a minute after that.
        max_concurrent: requests in flight at a time.

    Raises:
        ParameterError: one of them is not allowed.
    """

    name: str
    key: str = field(repr=False)
    scopes: frozenset[str] = frozenset({CHAT})
    requests_per_minute: int | None = None
    max_concurrent: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ParameterError(
                "the name of an API key must be at most 64 of the characters A-Z a-z 0-9 . _ @ - "
                "and begin with a letter or digit"
            )
        if not isinstance(self.key, str) or not _KEY.fullmatch(self.key):
            raise ParameterError(
                f"the API key {self.name!r} must be 1 to 512 visible ASCII characters, "
                "without spaces"
            )
        if self.key == HIDDEN:  # everybody knows it
            raise ParameterError(
                f"the API key {self.name!r} was left out when these settings were printed; put it "
                f"in place of {HIDDEN}"
            )
        if unknown := self.scopes - SCOPES:
            raise ParameterError(
                f"the API key {self.name!r} has the scope {shown(min(unknown))}; allowed are "
                f"{', '.join(sorted(SCOPES))}"
            )
        for limit in ("requests_per_minute", "max_concurrent"):
            if getattr(self, limit) is not None:
                what = f"{limit} of the API key {self.name!r}"
                check_number(what, getattr(self, limit), 1, integer=True)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    Attributes:
        name: of the key; empty where no key is asked for.
        scopes: what he may do.
        shares: what he evaluated is reused for others.
    """

    name: str = ""
    scopes: frozenset[str] = SCOPES
    shares: bool = False

    @property
    def tenant(self) -> str:
        """The owner of the prefixes and sessions that it uses: empty for those of everybody."""
        return "" if self.shares else self.name


class KeyRing:
    """Finds a key among those that are known, in constant time."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = [(_digest(key.key.encode("ascii")), key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, given: bytes) -> ApiKey | None:
        """The key that was given, or None. Compares with all of them in any case."""
        digest, found = _digest(given), None
        for known, key in self._keys:
            if hmac.compare_digest(known, digest):
                found = key
        return found


def _digest(key: bytes) -> bytes:
    """Of one length whatever the key is: comparing would tell its length."""
    return hashlib.sha256(key).digest()


# ---- how much ----------------------------------------------------------------------------------


class Allowance:
    """The rest of the limits of one key. Used by one thread.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, key: ApiKey, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = key
        self._clock = clock
        self._left = float(key.requests_per_minute or 0)
        self._counted = clock()
        self._running = 0

    def begin(self) -> tuple[str, int] | None:
        """Count a request; or say which limit it would exceed, and after how many seconds to try
        again."""
        most, rate = self._key.max_concurrent, self._key.requests_per_minute
        if most is not None and self._running >= most:
            return f"{most} requests with this API key are in flight already", 1
        if rate is not None:
            now, per_second = self._clock(), rate / 60
            self._left = min(float(rate), self._left + (now - self._counted) * per_second)
            self._counted = now
            if self._left < 1:
                wait = math.ceil((1 - self._left) / per_second)
                return f"this API key allows {rate} requests per minute", wait
            self._left -= 1
        self._running += 1
        return None

    def end(self) -> None:
        """A request that was counted is over."""
        self._running -= 1


# ---- where keys come from ----------------------------------------------------------------------


def check_keys(keys: Sequence[ApiKey]) -> None:
    """Raise ``ParameterError`` if two keys have the same name, or two names the same key."""
    seen: dict[str, str] = {}
    for key in keys:
        for text, what in ((f"n{key.name}", "name"), (f"k{key.key}", "key")):
            if text in seen:
                raise ParameterError(
                    f"the API keys {seen[text]!r} and {key.name!r} have the same {what}; each "
                    "needs its own"
                )
            seen[text] = key.name


def single_key(key: str) -> ApiKey:
    """A key that was given by itself: its owner runs the server, and may do everything.

    Its name depends on nothing but the key, so that sessions are found again after a restart.
    The name stands in logs: who reads one can try out keys without asking the server, so a key
    has to be long and random.
    """
    named = b"llama_py name of a key\0" + key.encode("utf-8", "surrogateescape")
    name = hashlib.sha256(named).hexdigest()[:8]
    return ApiKey(f"key-{name}", key, SCOPES)


_FIELDS = ("name", "key", "scopes", "requests_per_minute", "max_concurrent")


def key_from_table(table: Mapping[str, Any]) -> ApiKey:
    """The key that a table of the configuration describes.

    Raises:
        ParameterError: something is missing, unknown or not allowed.
    """
    for name in table:
        if name not in _FIELDS:
            expected = ", ".join(_FIELDS)
            raise UnknownParameterError(f"an API key has no {name!r}; it may have {expected}")
    for name in ("name", "key"):
        read_text(f"{name} of an API key", table.get(name, ""))
    values = dict(table)
    if "scopes" in values:
        values["scopes"] = frozenset(read_list("scopes", values["scopes"]))
    return ApiKey(**values)


def read_key_file(path: Path) -> list[ApiKey]:
    """The keys in a file: one in each line, ``KEY`` or ``NAME KEY [scopes=chat,admin]
    [requests_per_minute=N] [max_concurrent=N]``. Lines that begin with ``#`` are comments.

    Raises:
        ParameterError: a line means nothing. It is named by its number, never by its text.
        OSError: the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ParameterError(f"{path} is no text in UTF-8") from None
    keys = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            try:
                keys.append(_key_of_line(words))
            except ParameterError as error:
                raise ParameterError(f"{path}, line {number}: {error}") from None
    if not keys:
        raise ParameterError(f"there is no API key in {path}")
    return keys


def _key_of_line(words: list[str]) -> ApiKey:
    if any(word.startswith("#") for word in words):  # else a key would be taken for a name
        raise ParameterError("a comment needs a line of its own")
    if len(words) == 1:
        return ApiKey(single_key(words[0]).name, words[0])
    table: dict[str, Any] = {"name": words[0], "key": words[1]}
    for word in words[2:]:
        name, equals, value = word.partition("=")
        if not equals or name in ("name", "key"):
            raise ParameterError("what follows name and key has the form scopes=chat,admin")
        table[name] = int(value) if value.isdecimal() else value
    return key_from_table(table)
