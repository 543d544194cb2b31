"""The types that the generated stubs use; seen by type checkers only (see ``types.py``)."""

from _ctypes import CFuncPtr, _CArgObject, _CDataType
from collections.abc import Callable
from ctypes import Array, Structure, Union, _Pointer, c_char, c_char_p, c_void_p
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, overload

from typing_extensions import Self

_T = TypeVar("_T", bound=_CDataType)
_Get = TypeVar("_Get")
_Set = TypeVar("_Set")
_P = ParamSpec("_P")
_R = TypeVar("_R")

Buffer: TypeAlias = _Pointer[_T] | Array[_T] | _CArgObject | c_void_p | int | None
"""Where C writes or reads numbers: an array, a pointer, byref(...), an address, or NULL."""

ConstBuffer: TypeAlias = _Pointer[_T] | Array[_T] | _CArgObject | c_void_p | bytes | int | None
"""Where C only reads, so that bytes will do as well."""

Address: TypeAlias = Buffer[Any]
"""A ``void *``."""

ConstAddress: TypeAlias = ConstBuffer[Any]
"""A ``const void *``."""

Ref: TypeAlias = _Pointer[_T] | Array[_T] | _T | _CArgObject | None
"""A visible struct, or a pointer, by reference."""

Text: TypeAlias = bytes | Array[c_char] | c_char_p | None
"""A ``const char *``."""

class Handle(c_void_p):
    """A pointer to a hidden struct; false when NULL."""

    def __bool__(self) -> bool: ...

class Ptr(_Pointer[_T]):
    """A pointer that C returned; false when NULL."""

    def __bool__(self) -> bool: ...

class Field(Generic[_Get, _Set]):
    """A field of a struct: its layout on the class, its value on an instance."""

    offset: int
    size: int

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _Get: ...
    def __set__(self, instance: object, value: _Set) -> None: ...

class Record(Structure):
    """A struct with the declared fields and no others (typeshed's accepts any name)."""

    __getattr__: None  # type: ignore[assignment, misc]
    __setattr__: None  # type: ignore[assignment, misc]

class RecordUnion(Union):
    """A union with the declared fields and no others."""

    __getattr__: None  # type: ignore[assignment, misc]
    __setattr__: None  # type: ignore[assignment, misc]

class Callback(CFuncPtr, Generic[_P, _R]):
    """A function pointer type: wraps a Python callable for C, or calls a C address."""

    @overload
    def __init__(self, function: Callable[_P, _R], /) -> None: ...
    @overload
    def __init__(self, address: int = 0, /) -> None: ...
    def __bool__(self) -> bool: ...
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
