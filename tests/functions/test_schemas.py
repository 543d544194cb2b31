"""A function says what it is: its schema, and values of the types that it names."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import jsonschema
import pytest
from typing_extensions import NotRequired

from llama_py.errors import ParameterError
from llama_py.functions.docstrings import read_docstring
from llama_py.functions.tool import FunctionTool, as_text
from llama_py.functions.types import WrongArgument


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


@dataclass
class Place:
    city: str
    country: str = "France"


class Span(TypedDict):
    days: int
    hourly: NotRequired[bool]


def everything(
    text: str,
    count: int,
    share: float,
    flag: bool,
    kind: Literal["a", "b", 3],
    unit: Unit,
    place: Place,
    span: Span,
    names: list[str],
    pair: tuple[int, str],
    table: dict[str, float],
    maybe: int | None = None,
    either: int | str = 0,
    tags: Annotated[Sequence[str], "words about it"] = (),
    anything: Any = None,
) -> str:
    """Do everything
    at once.

    Args:
        text: what it
            says.
        count (int): how many.
    """
    return text


GOOD = (
    '{"text": "t", "count": 2, "share": 1, "flag": true, "kind": 3, "unit": "celsius", '
    '"place": {"city": "Lyon"}, "span": {"days": 2}, "names": ["x"], "pair": [1, "z"], '
    '"table": {"k": 1.5}, "maybe": null, "either": "e", "tags": ["t"], "anything": [1, {}]}'
)


def test_the_definition_is_a_schema_that_its_arguments_fit() -> None:
    function = FunctionTool.of(everything).definition["function"]
    assert (function["name"], function["description"]) == ("everything", "Do everything at once.")
    schema = function["parameters"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(GOOD), schema)
    assert schema["properties"]["text"]["description"] == "what it says."
    assert schema["properties"]["count"] == {"type": "integer", "description": "how many."}
    assert schema["properties"]["unit"]["enum"] == ["celsius", "fahrenheit"]
    assert schema["properties"]["place"]["required"] == ["city"]
    assert schema["properties"]["tags"]["description"] == "words about it"
    assert schema["properties"]["either"]["default"] == 0
    assert schema["required"][-1] == "table"


def test_arguments_become_values_of_the_types() -> None:
    values = FunctionTool.of(everything).read(GOOD)
    assert values["share"] == 1.0
    assert type(values["share"]) is float
    assert values["unit"] is Unit.C
    assert values["place"] == Place("Lyon", "France")
    assert values["pair"] == (1, "z")
    assert values["maybe"] is None
    assert values["anything"] == [1, {}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"count": 2', '"count": "2"'), "count must be of type integer, not '2'"),
        (('"flag": true', '"flag": 1'), "flag must be of type boolean"),
        (('"kind": 3', '"kind": "c"'), "kind must be one of 'a', 'b', 3"),
        (('"days": 2', '"days": "two"'), "span.days must be of type integer"),
        (('"city": "Lyon"', '"town": "Lyon"'), "place.city is missing"),
        (('"names": ["x"]', '"names": [1]'), r"names\[0\] must be of type string"),
        (('"pair": [1, "z"]', '"pair": [1]'), "pair must be a list of 2 values"),
        (('"either": "e"', '"either": 1.5'), "either must be of type integer.*; or either"),
        (('"text": "t", ', ""), "text is missing"),
        (('"text"', '"txt"'), "text is missing"),
        (("{", "["), "not JSON"),
    ],
)
def test_what_does_not_fit_is_named(change: tuple[str, str], words: str) -> None:
    with pytest.raises(WrongArgument, match=words):
        FunctionTool.of(everything).read(GOOD.replace(*change, 1))


def test_pydantic_models_are_read_by_themselves() -> None:
    pydantic = pytest.importorskip("pydantic")
    kind = pydantic.create_model("Box", width=(int, ...))

    def pack(box: Any) -> str:
        return str(box.width)

    pack.__annotations__["box"] = kind
    tool = FunctionTool.of(pack)
    assert tool.read('{"box": {"width": 3}}')["box"].width == 3
    with pytest.raises(WrongArgument, match=r"box: .*width"):
        tool.read('{"box": {"width": "wide"}}')


GOOGLE = """Does it.

Args:
    one: the first
        of two.
    two (int): the second.

Returns:
    x: y
"""
NUMPY = """Does it.

Parameters
----------
one : str
    the first
    of two.
two : int
    the second.
"""
REST = """Does it.

:param one: the first
    of two.
:param int two: the second.
:returns: x
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_docstrings_of_three_kinds(text: str) -> None:
    assert read_docstring(text) == (
        "Does it.",
        {"one": "the first of two.", "two": "the second."},
    )


@dataclass
class Node:
    inner: list[Node]

    def depth(self, most: int) -> int:
        return most


def test_models_within_models_are_found() -> None:
    pydantic = pytest.importorskip("pydantic")
    city = pydantic.create_model("City", name=(str, ...))
    person: Any = pydantic.create_model("Person", home=(city, ...))

    def visit(people: Any) -> str:
        return str(people[0].home.name)

    visit.__annotations__["people"] = list[person]
    tool = FunctionTool.of(visit)
    schema = tool.definition["function"]["parameters"]
    given = {"people": [{"home": {"name": "Rome"}}]}
    jsonschema.validate(given, schema)
    assert tool.read(json.dumps(given))["people"][0].home.name == "Rome"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"people": [{"home": {"name": 3}}]}, schema)


def test_what_has_no_form_as_a_tool_is_refused() -> None:
    def variable(*names: str) -> None: ...

    def odd(when: complex) -> None: ...

    with pytest.raises(ParameterError, match=r"\*names.* cannot be called by name"):
        FunctionTool.of(variable)

    def generates(count: int) -> Iterator[int]:
        yield count

    def circle(node: Node) -> None: ...

    def unknown(x: Nothing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ParameterError, match="<lambda> is not one"):
        FunctionTool.of(lambda: 1)
    with pytest.raises(ParameterError, match="generates is a generator"):
        FunctionTool.of(generates)
    with pytest.raises(ParameterError, match="Node contains itself"):
        FunctionTool.of(circle)
    with pytest.raises(ParameterError, match="unknown: an annotation cannot be read"):
        FunctionTool.of(unknown)
    with pytest.raises(ParameterError, match="a method without its object"):
        FunctionTool.of(Node.depth)
    with pytest.raises(ParameterError, match="odd: when: there is no JSON schema for"):
        FunctionTool.of(odd)


def test_results_are_text() -> None:
    assert as_text("as it is <|im_end|>") == "as it is <|im_end|>"
    assert as_text({"a": Place("Lyon"), "b": {1}, "c": Unit.C}) == (
        '{"a": {"city": "Lyon", "country": "France"}, "b": [1], "c": "celsius"}'
    )
    assert as_text(None) == "null"
