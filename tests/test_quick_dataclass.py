"""The library's ``dataclass`` is that of the standard library in all that can be seen of it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest

from llama_py.quick_dataclass import dataclass as quick

#: The keywords that the library uses.
WAYS: tuple[dict[str, bool], ...] = (
    {},
    {"slots": True},
    {"eq": False},
    {"slots": True, "eq": False},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "kw_only": True},
)
CHANGES: tuple[Callable[[Any, str], None], ...] = (lambda at, name: setattr(at, name, 8), delattr)
Make = Callable[..., Any]


def plain(made: Make, way: dict[str, bool]) -> Any:
    @made(**way)
    class Plain:
        """Fields of each kind."""

        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list)
        hidden: int = field(default=1, repr=False)
        apart: int = field(default=2, compare=False)
        named: int = field(default=3, kw_only=True)
        kind: ClassVar[str] = "kind"

    return Plain


def derived(made: Make, way: dict[str, bool]) -> Any:
    base = plain(made, way)

    @made(**way)
    class Derived(base):  # type: ignore[misc, valid-type]
        """More fields, one of them set later."""

        b: str = "other"
        d: float = 0.5
        later: int = field(init=False, default=7)
        sum: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "sum", self.a + 1)

    return Derived


def own(made: Make, way: dict[str, bool]) -> Any:
    @made(**way)
    class Own:
        """Methods that it has itself."""

        a: int = 0

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

        def __hash__(self) -> int:
            return 5

    return Own


def empty(made: Make, way: dict[str, bool]) -> Any:
    @made(**way)
    class Empty:
        """Nothing."""

    return Empty


def attempt(action: Make, *given: Any, **named: Any) -> Any:
    """What an action returns, or the class and the text of what it raises."""
    try:
        return action(*given, **named)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way) or "default")
@pytest.mark.parametrize("shape", [plain, derived, own, empty])
def test_it_does_what_the_other_one_does(shape: Make, way: dict[str, bool]) -> None:
    ours, theirs = shape(quick, way), shape(dataclasses.dataclass, way)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert [f.name for f in dataclasses.fields(ours)] == [
        f.name for f in dataclasses.fields(theirs)
    ]
    assert ours.__match_args__ == theirs.__match_args__
    assert hasattr(ours, "__slots__") == hasattr(theirs, "__slots__")
    given: list[dict[str, Any]] = [{}, {"a": 1}, {"a": 1, "b": "x", "c": [2]}, {"a": 1, "apart": 9}]
    given += [{"a": 1, "hidden": 4}, {"a": 1, "named": 5}, {"a": 2, "later": 1}, {"other": 1}]
    pairs = [(attempt(ours, **each), attempt(theirs, **each)) for each in given]
    objects = [(a, b) for a, b in pairs if isinstance(a, ours)]
    assert len(objects) == sum(isinstance(b, theirs) for _, b in pairs)
    assert [a for a, _ in pairs if not isinstance(a, ours)] == [
        b for _, b in pairs if not isinstance(b, theirs)
    ]
    for a, b in objects:
        assert repr(a) == repr(b)
        for change in CHANGES:
            for name in ("a", "unknown"):
                refused = attempt(change, a, name), attempt(change, b, name)
                assert bool(refused[0]) == bool(refused[1])
                if way.get("frozen"):  # Python 3.11 means to say that, and has another error
                    assert refused[0][0] is dataclasses.FrozenInstanceError
    objects = [(ours(**each), theirs(**each)) for each in given if is_object(theirs, each)]
    for a, b in objects:
        hashes = attempt(hash, a), attempt(hash, b)
        assert hashes[0] == hashes[1] or way.get("eq") is False
        for c, d in objects:
            assert (a == c) == (b == d)
        assert repr(copy.copy(a)) == repr(a)
        assert repr(copy.deepcopy(a)) == repr(a)
        assert repr(dataclasses.replace(a)) == repr(dataclasses.replace(b))
        assert dataclasses.asdict(a) == dataclasses.asdict(b)


def is_object(kind: Any, given: dict[str, Any]) -> bool:
    return isinstance(attempt(kind, **given), kind)


@quick(frozen=True, slots=True)
class Kept:
    """At the top of a module, where it can be pickled; it may contain itself."""

    a: int
    b: list[Any] = field(default_factory=list)


def test_it_is_pickled_and_shown_within_itself() -> None:
    kept = Kept(1)
    kept.b.append(kept)
    assert repr(kept) == "Kept(a=1, b=[...])"
    other = pickle.loads(pickle.dumps(Kept(1, [2])))
    assert other == Kept(1, [2])
    assert other != Kept(2, [2])


def test_what_guards_itself_is_refused() -> None:
    with pytest.raises(TypeError, match="__setattr__"):

        @quick(frozen=True)
        class Own:
            a: int

            def __setattr__(self, name: str, value: object) -> None: ...
