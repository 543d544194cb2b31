"""Marks inside ``Annotated``: all that is said of an option beside its name and type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Default",
    "Doc",
    "Empty",
    "Flag",
    "Ignored",
    "NoneCounts",
    "Numbered",
    "Range",
    "Reads",
    "SameAs",
    "WithoutDefault",
]


@dataclass(frozen=True, slots=True)
class Doc:
    """The meaning of the option, in Markdown; one or two sentences."""

    text: str


class Default:
    """The value of an option that is not given.

    Args:
        value: for every call,
        of: except for those calls; ``create_chat_completion=0.2``.
    """

    __slots__ = ("of", "value")

    def __init__(self, value: Any, **of: Any) -> None:
        self.value = value
        self.of = of


@dataclass(frozen=True, slots=True)
class WithoutDefault:
    """Where the value comes from when the option is not given, in words, for the docs."""

    text: str


@dataclass(frozen=True, slots=True)
class Range:
    """Smallest and largest allowed number; None is no limit."""

    low: float | None = None
    high: float | None = None


class Numbered:
    """The numbers behind the names of a ``Literal``, in its order. Both are accepted."""

    __slots__ = ("numbers",)

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers


@dataclass(frozen=True, slots=True)
class Empty:
    """An empty text is allowed."""


@dataclass(frozen=True, slots=True)
class NoneCounts:
    """``None`` is a value of its own, and not the same as leaving the option out."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """Accepted, whatever the value is, and without effect."""


@dataclass(frozen=True, slots=True)
class SameAs:
    """Another name of the option ``name``."""

    name: str


@dataclass(frozen=True, slots=True)
class Reads:
    """How a value is checked and brought to the form that the library uses.

    Attributes:
        read: ``read(name, value)`` returns that form, or raises.
        json: the JSON schema of such values; None if JSON cannot express them.
    """

    read: Callable[[str, Any], Any]
    json: Mapping[str, Any] | None = None


class Flag:
    """The flags of the option on the command line.

    Args:
        flags: ``"-c", "--n-ctx"``.
        metavar: the name of its value in the help; None for a flag that has no value.
        help: what the help says, where its meaning and default are not said in other words.
    """

    __slots__ = ("flags", "help", "metavar")

    def __init__(self, *flags: str, metavar: str | None = None, help: str | None = None) -> None:
        self.flags: Sequence[str] = flags
        self.metavar = metavar
        self.help = help
