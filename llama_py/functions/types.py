"""``reader_of``: an annotation as a JSON schema, and what makes a value of it of a JSON value."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typing_extensions
from typing_extensions import is_typeddict

from llama_py.errors import ParameterError

__all__ = ["Reader", "WrongArgument", "reader_of"]

#: Makes a value of a JSON value that stands at a path ("when.day"), or raises ``WrongArgument``.
Convert = Callable[[Any, str], Any]

_PLAIN: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_LISTS = (list, Sequence, typing.Iterable, tuple, set, frozenset)
#: Records within records.
_DEEPEST = 16
_REQUIRED = (typing_extensions.Required,)
_NOT_REQUIRED = (typing_extensions.NotRequired,)


class WrongArgument(ValueError):
    """An argument of a call is not of its type; the message is for the model."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """A type.

    Attributes:
        schema: its JSON schema.
        convert: makes a value of it.
    """

    schema: dict[str, Any]
    convert: Convert


def reader_of(kind: Any, where: str) -> Reader:
    """The reader of an annotation.

    Args:
        where: the parameter, for errors.

    Raises:
        ParameterError: there is no JSON schema for it.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (Any, inspect.Parameter.empty, object):
        return Reader({}, lambda value, _: value)
    if kind is None or kind is type(None):
        return Reader({"type": "null"}, _null)
    if origin in (typing.Annotated, *_REQUIRED, *_NOT_REQUIRED):
        return _described(reader_of(arguments[0], where), arguments[1:])
    if kind in _PLAIN:
        return Reader({"type": _PLAIN[kind]}, _plain(kind))
    if origin is Literal:
        return _choice({value: value for value in arguments})
    if origin in (Union, types.UnionType):
        return _union([reader_of(each, where) for each in arguments])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _choice({member.value: member for member in kind})
    if kind in _LISTS or (
        isinstance(origin, type) and issubclass(origin, (Sequence, set, frozenset))
    ):
        return _list(kind, origin, arguments, where)
    if kind in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return _mapping(arguments, where)
    if dataclasses.is_dataclass(kind) or is_typeddict(kind):
        return _record(kind, where)
    if callable(getattr(kind, "model_json_schema", None)):
        return _pydantic(kind)
    raise ParameterError(
        f"{where}: there is no JSON schema for {kind!r}; use str, int, float, bool, list, dict, "
        "Literal, Enum, Optional, a dataclass, a TypedDict or a pydantic model"
    )


def _described(reader: Reader, notes: tuple[Any, ...]) -> Reader:
    texts = [each for each in notes if isinstance(each, str)]
    return Reader({**reader.schema, **({"description": texts[0]} if texts else {})}, reader.convert)


def _null(value: Any, path: str) -> None:
    if value is not None:
        raise WrongArgument(f"{path} must be null, not {value!r}")


def _plain(kind: type) -> Convert:
    def convert(value: Any, path: str) -> Any:
        if kind is float and type(value) is int:
            return float(value)
        if kind is int and type(value) is float and value.is_integer():
            return int(value)
        if type(value) is not kind:
            raise WrongArgument(f"{path} must be of type {_PLAIN[kind]}, not {value!r}")
        return value

    return convert


def _choice(values: Mapping[Any, Any]) -> Reader:
    names = [*values]

    def convert(value: Any, path: str) -> Any:
        for name, found in values.items():
            if name == value and type(name) is type(value):
                return found
        raise WrongArgument(f"{path} must be one of {', '.join(map(repr, names))}, not {value!r}")

    kinds = {_PLAIN.get(type(name)) for name in names}
    known = {"type": kinds.pop()} if len(kinds) == 1 and None not in kinds else {}
    return Reader({**known, "enum": names}, convert)


def _union(readers: Sequence[Reader]) -> Reader:
    def convert(value: Any, path: str) -> Any:
        problems = []
        for reader in readers:
            try:
                return reader.convert(value, path)
            except WrongArgument as error:
                problems.append(str(error))
        raise WrongArgument("; or ".join(problems))

    return Reader({"anyOf": [each.schema for each in readers]}, convert)


def _list(kind: Any, origin: Any, arguments: tuple[Any, ...], where: str) -> Reader:
    made = origin if origin in (tuple, set, frozenset) else kind if kind in (tuple, set) else list
    if made is tuple and arguments and arguments[-1] is not Ellipsis:
        return _tuple([reader_of(each, where) for each in arguments])
    item = reader_of(arguments[0] if arguments else Any, where)

    def convert(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise WrongArgument(f"{path} must be a list, not {value!r}")
        return made(item.convert(each, f"{path}[{place}]") for place, each in enumerate(value))

    return Reader({"type": "array", **({"items": item.schema} if item.schema else {})}, convert)


def _tuple(items: Sequence[Reader]) -> Reader:
    def convert(value: Any, path: str) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            raise WrongArgument(f"{path} must be a list of {len(items)} values, not {value!r}")
        pairs = enumerate(zip(items, value, strict=True))
        return tuple(reader.convert(each, f"{path}[{n}]") for n, (reader, each) in pairs)

    size = {"minItems": len(items), "maxItems": len(items)}
    return Reader(
        {"type": "array", "prefixItems": [each.schema for each in items], **size}, convert
    )


def _mapping(arguments: tuple[Any, ...], where: str) -> Reader:
    item = reader_of(arguments[1] if len(arguments) > 1 else Any, where)

    def convert(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise WrongArgument(f"{path} must be an object, not {value!r}")
        return {name: item.convert(each, f"{path}.{name}") for name, each in value.items()}

    return Reader({"type": "object", "additionalProperties": item.schema or True}, convert)


def _record(kind: Any, where: str) -> Reader:
    """A dataclass, or a TypedDict."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        # The class itself does not see them where annotations are texts.
        marks = {name: get_origin(each) for name, each in hints.items()}
        required = [n for n in kind.__required_keys__ if marks[n] not in _NOT_REQUIRED]
        required += [n for n in kind.__optional_keys__ if marks[n] in _REQUIRED]
    else:
        fields = [each for each in dataclasses.fields(kind) if each.init]
        hints = {each.name: hints[each.name] for each in fields}
        missing = dataclasses.MISSING
        required = [e.name for e in fields if e.default is missing and e.default_factory is missing]
    if where.count(".") > _DEEPEST:
        raise ParameterError(f"{where[:60]}...: {kind.__name__} contains itself, or is too deep")
    readers = {name: reader_of(each, f"{where}.{name}") for name, each in hints.items()}
    required = [name for name in readers if name in required]
    schema = {
        "type": "object",
        "properties": {name: reader.schema for name, reader in readers.items()},
        "required": required,
        "additionalProperties": False,
    }

    def convert(value: Any, path: str) -> Any:
        return kind(**read_object(value, readers, required, path))

    return Reader(schema, convert)


def read_object(
    value: Any, readers: Mapping[str, Reader], required: Sequence[str], path: str
) -> dict[str, Any]:
    """The properties of an object, each read by its reader.

    Raises:
        WrongArgument: it is not an object, lacks a property, or has others.
    """
    if not isinstance(value, dict):
        raise WrongArgument(f"{path or 'the arguments'} must be an object, not {value!r}")
    inner = f"{path}." if path else ""
    for name in required:
        if name not in value:
            raise WrongArgument(f"{inner}{name} is missing")
    for name in value:
        if name not in readers:
            raise WrongArgument(f"there is no {inner}{name}; there are: {', '.join(readers)}")
    return {name: readers[name].convert(each, inner + name) for name, each in value.items()}


def _pydantic(kind: Any) -> Reader:
    def convert(value: Any, path: str) -> Any:
        try:
            return kind.model_validate(value)
        except ValueError as error:
            raise WrongArgument(f"{path}: {' '.join(str(error).split())}") from None

    return Reader(kind.model_json_schema(), convert)
