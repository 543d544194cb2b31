"""``dataclass``: that of the standard library, made in a third of the time.

``dataclasses`` compiles a text for each method of each class: five for one that is frozen and can
be compared. With some ninety of them, that is a third of the time that importing takes. Here only
``__init__`` is compiled; the other methods are closures over the fields, and do the same. For type
checkers, it is the other one; fields, ``replace`` and whatever else asks for them are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from dataclasses import dataclass as _dataclass
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["dataclass"]

T = TypeVar("T")


class _Factory:
    """Stands in signatures for a default that is made anew each time."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _quick(
    cls: type[T] | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    kw_only: bool = False,
) -> Any:
    def make(cls: type[T]) -> type[T]:
        own_hash = cls.__dict__.get("__hash__", MISSING)
        # A class that has a method __eq__ has None there.
        hashes = own_hash is not MISSING and not (own_hash is None and "__eq__" in cls.__dict__)
        made: Any = _dataclass(
            init=not frozen, repr=False, eq=False, slots=slots, kw_only=kw_only
        )(cls)  # fmt: skip
        known = fields(made)
        _add(made, "__repr__", _repr([each.name for each in known if each.repr]))
        if eq:
            _add(made, "__eq__", _eq(_getter([each.name for each in known if each.compare])))
            if not hashes:
                hashed = [each.name for each in known if _is_hashed(each)]
                made.__hash__ = _hash(_getter(hashed)) if frozen else None
        if frozen:
            _freeze(made, known)
            if slots:
                _let_copy(made, [each.name for each in known])
        return made  # type: ignore[no-any-return]

    return make if cls is None else make(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _quick


def _add(cls: type, name: str, method: Callable[..., Any]) -> None:
    """Give a class a method, unless it has one of this name."""
    if name not in cls.__dict__:
        method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
        setattr(cls, name, method)


def _is_hashed(field: Field[Any]) -> bool:
    return field.compare if field.hash is None else field.hash


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _repr(names: list[str]) -> Callable[..., Any]:
    @recursive_repr()
    def show(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return show


def _eq(value: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Any]:
    def equal(self: Any, other: object) -> Any:
        if other.__class__ is self.__class__:
            return value(self) == value(other)
        return NotImplemented

    return equal


def _hash(value: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Any]:
    return lambda self: hash(value(self))


def _freeze(cls: type[Any], known: tuple[Field[Any], ...]) -> None:
    names = frozenset(each.name for each in known)

    def assign(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    _add(cls, "__init__", _init(cls, known))
    for name, method in (("__setattr__", assign), ("__delattr__", delete)):
        if name in cls.__dict__:
            raise TypeError(f"{cls.__name__} has a method {name} of its own")
        _add(cls, name, method)


def _let_copy(cls: type, names: list[str]) -> None:
    """Copying and pickling would assign to the fields of a frozen class with slots."""

    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def restore(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    _add(cls, "__getstate__", state)
    _add(cls, "__setstate__", restore)


def _init(cls: type, known: tuple[Field[Any], ...]) -> Callable[..., Any]:
    """``__init__`` of a frozen class, whose fields cannot be assigned to."""
    scope: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    plain, named, lines = ["self"], list[str](), list[str]()
    for field in known:
        name, parameter, value = field.name, field.name, field.name
        if field.default_factory is not MISSING:
            scope[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_FACTORY"
            value = f"_make_{name}()" + (
                f" if {name} is _FACTORY else {name}" if field.init else ""
            )
        elif field.default is not MISSING:
            scope[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
            value = name if field.init else f"_default_{name}"
        elif not field.init:  # __post_init__ sets it
            continue
        if field.init:
            (named if field.kw_only else plain).append(parameter)
        lines.append(f"  _set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("  self.__post_init__()")
    parameters = ", ".join([*plain, *(["*", *named] if named else [])])
    exec(f"def __init__({parameters}):\n" + ("\n".join(lines) or "  pass"), scope)
    made: Callable[..., Any] = scope["__init__"]
    made.__annotations__ = {each.name: each.type for each in known if each.init}
    made.__annotations__["return"] = None
    return made
