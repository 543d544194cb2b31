"""``FunctionTool``: a Python function that a model can call."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from llama_py.errors import ParameterError, ParameterTypeError
from llama_py.functions.docstrings import read_docstring
from llama_py.functions.types import Reader, WrongArgument, read_object, reader_of

__all__ = ["FunctionTool", "as_text", "read_tools"]


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function, and its form for models.

    Attributes:
        name: of the function.
        description: the summary of its docstring.
        function: itself; it may be a coroutine function.
        readers: of its parameters, by name.
        required: names of the parameters without a default.
    """

    name: str
    description: str
    function: Callable[..., Any]
    readers: Mapping[str, Reader]
    required: tuple[str, ...]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> FunctionTool:
        """The tool of a function: its name, docstring, parameters and type hints.

        Raises:
            ParameterError: it has no name that a model can write, a parameter is positional only or
                variable, there is no JSON schema for its type, or it is a generator.
        """
        name = _checked_name(function)
        hints = _hints(function, name)
        summary, meanings = read_docstring(inspect.getdoc(function) or "")
        readers, required = {}, []
        for number, parameter in enumerate(inspect.signature(function).parameters.values()):
            if number == 0 and parameter.name == "self" and parameter.name not in hints:
                raise ParameterError(f"{name} is a method without its object; pass object.{name}")
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ParameterError(
                    f"{name}: {parameter} cannot be called by name; a model names its arguments"
                )
            kind = hints.get(parameter.name, parameter.annotation)
            reader = reader_of(kind, f"{name}: {parameter.name}")
            readers[parameter.name] = _documented(reader, parameter, meanings)
            if parameter.default is parameter.empty:
                required.append(parameter.name)
        return cls(name, summary, function, readers, tuple(required))

    @property
    def definition(self) -> dict[str, Any]:
        """The tool in OpenAI's form, for ``tools=``."""
        parameters = {
            "type": "object",
            "properties": {name: reader.schema for name, reader in self.readers.items()},
            "required": [*self.required],
            "additionalProperties": False,
        }
        shared: dict[str, Any] = {}
        parameters = _hoisted(parameters, shared)
        parameters |= {"$defs": shared} if shared else {}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    @property
    def is_async(self) -> bool:
        """Whether it has to be awaited."""
        return inspect.iscoroutinefunction(_inner(self.function))

    def read(self, arguments: str) -> dict[str, Any]:
        """The arguments of a call, converted.

        Raises:
            WrongArgument: they do not fit; the message is for the model.
        """
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise WrongArgument(f"the arguments are not JSON: {arguments[:200]}") from None
        try:
            return read_object(given, self.readers, self.required, "")
        except WrongArgument:
            raise
        except Exception as error:  # of the caller's types, such as __post_init__
            raise WrongArgument(f"the arguments do not fit: {error}") from error


def _checked_name(function: Any) -> str:
    """The name of a function that has a form as a tool."""
    if not callable(function):
        raise ParameterTypeError(f"a tool is a function, not {type(function).__name__}")
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__name__", type(function).__name__)
    if not re.fullmatch(r"[\w-]{1,64}", name):
        raise ParameterError(f"a tool needs a name, and {name} is not one; write it with def")
    inner = _inner(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise ParameterError(f"{name} is a generator; a tool returns its result, such as a list")
    return name


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(_inner(function), include_extras=True)
    except NameError as error:
        raise ParameterError(f"{name}: an annotation cannot be read: {error}") from error


def _hoisted(schema: Any, shared: dict[str, Any]) -> Any:
    """A schema without the ``$defs`` in it, which go to ``shared``: references begin at the root.

    Raises:
        ParameterError: two types of one name differ.
    """
    if isinstance(schema, list):
        return [_hoisted(each, shared) for each in schema]
    if not isinstance(schema, dict):
        return schema
    for name, each in schema.get("$defs", {}).items():
        if shared.setdefault(name, each) != each:
            raise ParameterError(f"two types are called {name}; rename one")
    return {key: _hoisted(each, shared) for key, each in schema.items() if key != "$defs"}


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the annotations: of an object that can be called, its method."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isfunction(function) or inspect.ismethod(function) or inspect.isbuiltin(function):
        return function
    found: Callable[..., Any] = getattr(function, "__call__", function)  # noqa: B004
    return found


def _documented(
    reader: Reader, parameter: inspect.Parameter, meanings: Mapping[str, str]
) -> Reader:
    schema = dict(reader.schema)
    if meanings.get(parameter.name):
        schema.setdefault("description", meanings[parameter.name])
    if parameter.default is not parameter.empty:
        try:
            schema["default"] = json.loads(as_text(parameter.default, quoted=True))
        except (ValueError, TypeError):
            pass
    return Reader(schema, reader.convert)


def read_tools(functions: Sequence[Callable[..., Any]]) -> dict[str, FunctionTool]:
    """The tools of functions by name.

    Raises:
        ParameterError: two have one name; see ``FunctionTool.of``.
    """
    found: dict[str, FunctionTool] = {}
    for function in functions:
        tool = function if isinstance(function, FunctionTool) else FunctionTool.of(function)
        if tool.name in found:
            raise ParameterError(f"two tools are called {tool.name}")
        found[tool.name] = tool
    return found


def as_text(value: Any, *, quoted: bool = False) -> str:
    """A result as a model reads it: a text as it is, everything else as JSON."""
    if isinstance(value, str) and not quoted:
        return value
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, enum.Enum):
        return value.value
    if callable(getattr(value, "model_dump", None)):
        return value.model_dump(mode="json")
    if isinstance(value, (set, frozenset, tuple)):
        return [*value]
    return str(value)
