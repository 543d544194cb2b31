"""What the headers say, as plain data: the only thing that parser and renderers share."""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scalar:
    """A number: the ctypes class (``c_int32``) and the Python type that it reads as."""

    ctype: str
    py: str


@dataclass(frozen=True)
class Void:
    """``void``: no result, or what a ``void *`` points to."""


@dataclass(frozen=True)
class Char:
    """A plain ``char``: text when it is const and pointed to, a buffer otherwise."""


@dataclass(frozen=True)
class Enum:
    """An enum, which crosses the boundary as a C int."""

    name: str


@dataclass(frozen=True)
class Record:
    """A struct whose fields the headers show."""

    name: str


@dataclass(frozen=True)
class Handle:
    """A pointer to a struct whose fields the headers hide: one Python class for each struct."""

    name: str


@dataclass(frozen=True)
class Callback:
    """A named function pointer type."""

    name: str


@dataclass(frozen=True)
class Pointer:
    """A pointer to anything that is not a hidden struct."""

    to: CType
    const: bool = False


@dataclass(frozen=True)
class Array:
    """An array inside a struct."""

    of: CType
    size: int


CType = Scalar | Void | Char | Enum | Record | Handle | Callback | Pointer | Array


@dataclass(frozen=True)
class Param:
    """A parameter of a function, or a field of a struct (whose C type is checked as well)."""

    name: str
    type: CType
    c_type: str = ""

    @property
    def py_name(self) -> str:
        """The name in Python, which reserves some that C does not (``async``)."""
        return f"{self.name}_" if keyword.iskeyword(self.name) else self.name


@dataclass
class RecordDecl:
    """A struct or union with its fields; ``tag`` is how C spells it, "" if C cannot.

    ``inline`` names the fields whose type has no name in C (it is ``{record}_{field}`` here);
    ``anonymous`` those of them that have no name themselves either.
    """

    name: str
    tag: str
    fields: list[Param] = field(default_factory=list)
    is_union: bool = False
    inline: list[str] = field(default_factory=list)
    anonymous: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CallbackDecl:
    """A typedef of a function pointer."""

    name: str
    result: CType
    params: tuple[Param, ...]


@dataclass(frozen=True)
class FunctionDecl:
    """A function, and ``c_type``: the C type of a pointer to it."""

    name: str
    result: CType
    params: tuple[Param, ...]
    c_type: str


@dataclass(frozen=True)
class HandleDecl:
    """A hidden struct; ``tag`` is the struct's C name."""

    name: str
    tag: str


@dataclass(frozen=True)
class Alias:
    """A typedef of something that has a name already."""

    name: str
    type: CType


@dataclass
class Module:
    """Everything that one generated module declares, in the order of the headers."""

    name: str
    constants: dict[str, int | float | str] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    handles: list[HandleDecl] = field(default_factory=list)
    aliases: list[Alias] = field(default_factory=list)
    records: list[RecordDecl] = field(default_factory=list)
    callbacks: list[CallbackDecl] = field(default_factory=list)
    functions: list[FunctionDecl] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
