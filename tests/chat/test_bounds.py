"""Schemas that are refused before anything native sees them, with the place and the reason."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from llama_py import Llama, demo_model_path
from llama_py.chat.constraints import LlamaGrammar, compile_schema
from llama_py.chat.grammars.converter import gbnf_of_schema
from llama_py.chat.schemas.bounds import MOST_DEPTH, MOST_TEXT, check_bounds, pattern_problem
from llama_py.core.sampling.sampler import Sampler
from llama_py.errors import GrammarError
from tests.chat.openai import chat_request
from tests.patience import PATIENCE

S = {"type": "string"}
N = {"type": "integer"}
USER = [{"role": "user", "content": "Give me a JSON object with name Alice and age 30."}]

#: Schema, and what the message says: the place, and the reason.
REFUSED: dict[str, tuple[Any, str, str]] = {
    "lengths": (
        {**S, "minLength": 5, "maxLength": 2},
        "#",
        '"minLength" is 5 and "maxLength" is 2',
    ),
    "items": (
        {"properties": {"a/b": {"type": "array", "minItems": 3, "maxItems": 1}}},
        "#/properties/a~1b",
        '"minItems" is 3',
    ),
    "integers": ({**N, "minimum": 5, "maximum": 4}, "#", 'no number with "minimum" 5'),
    "integers between": (
        {**N, "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        "#",
        "there is no integer",
    ),
    "multiples": ({**N, "minimum": 1, "maximum": 9, "multipleOf": 10}, "#", "multiple of 10"),
    "false": (False, "#", "it is false"),
    "required and false": (
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        "#",
        "required property 'a' is forbidden",
    ),
    "empty enum": ({"type": "array", "items": {"enum": []}}, "#/items", '"enum" is empty'),
    "const": ({**S, "const": 5}, "#", '"const" is not of the type "string"'),
    "itself": ({"$ref": "#"}, "#", "needs itself again"),
    "a circle": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "#/$defs/a",
        "needs itself again",
    ),
    "a required circle": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "#",
        "needs itself again",
    ),
    "not a number": ({"enum": [1, float("nan")]}, "#/enum/1", "nan is not a JSON number"),
    "half a character": ({"const": "\ud800"}, "#/const", "surrogate"),
    "a name that is none": ({"properties": {1: S}}, "#/properties", "1 is not a string"),
    "a set": ({"const": {1}}, "#/const", "a set, which JSON has not"),
    "a long text": ({"enum": ["a" * 100_000]}, "#/enum/0", str(MOST_TEXT)),
    "a pattern": ({**S, "pattern": "^((a{1,99}){1,99}){1,99}$"}, "#", "written out"),
    "minLength": ({**S, "minLength": 1_000_000}, "#", '"minLength" is 1000000'),
    "required": ({"type": "object", "required": True}, "#", '"required" must be a list'),
    "a required list": ({"type": "object", "required": [["a"]]}, "#", "and has ['a']"),
    "format": ({"format": {"a": 1}}, "#", '"format" must be a text'),
    "maxLength": ({**S, "maxLength": None}, "#", '"maxLength" must be a number, not None'),
    "maxItems": ({"type": "array", "maxItems": "2"}, "#", '"maxItems" must be a number'),
    "minItems": ({"prefixItems": [S], "minItems": "2"}, "#", '"minItems" must be a number'),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    schema, place, reason = REFUSED[name]
    with pytest.raises(GrammarError) as raised:
        check_bounds(schema)
    assert f"the JSON schema at {place}: " in str(raised.value)
    assert reason in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


ACCEPTED: dict[str, Any] = {
    "anything": True,
    "a forbidden property": {"type": "object", "properties": {"a": False}},
    "a list of nothing": {"type": "array", "items": False},
    "a tree": {"type": "object", "properties": {"a": {"$ref": "#"}}},
    "a list of lists": {"type": "array", "items": {"$ref": "#"}},
    "one way out": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    "exactly one": {**N, "minimum": 3, "maximum": 3},
    "a property with the name of a keyword": {
        "properties": {"minLength": N, "enum": S, "required": {"type": "boolean"}},
        "default": {"minLength": 10**9},
    },
    "a remote reference": {"$ref": "https://example.org/x"},  # its enforcer knows what it can
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    check_bounds(ACCEPTED[name])


def test_nesting() -> None:
    """A schema that is too deep for Python's own functions, also as text."""
    schema: Any = S
    for _ in range(2000):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(GrammarError, match=f"more than {MOST_DEPTH} levels"):
        check_bounds(schema)
    with pytest.raises(GrammarError, match=r'nested too deep to be read; use "\$defs"'):
        compile_schema('{"items":' * 100_000 + "{}" + "}" * 100_000)
    itself: dict[str, Any] = {"type": "object"}
    itself["properties"] = {"a": itself}
    with pytest.raises(GrammarError, match=f"more than {MOST_DEPTH} levels"):
        check_bounds(itself)


def test_what_passed_once_is_looked_at_again_when_it_has_changed() -> None:
    schema: dict[str, Any] = {"type": "array", "items": {"enum": ["a"]}, "minItems": 1}
    check_bounds(schema)
    schema["items"]["enum"].clear()
    with pytest.raises(GrammarError, match="empty"):
        check_bounds(schema)


def test_patterns() -> None:
    assert pattern_problem("^[a-z]{2,5}(\\d{3}|x)*$") is None
    assert "5,2" in str(pattern_problem("a{5,2}"))
    assert "nested" in str(pattern_problem("(" * 200))


@pytest.mark.parametrize("key", ["tools", "functions"])
def test_parameters_of_tools(key: str) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"enum": []}}}}
    given: Any = [{"type": "function", "function": function}] if key == "tools" else [function]
    place = r"tools\[0\].function.parameters at #/properties/a"
    with pytest.raises(GrammarError, match=place):
        chat_request(
            USER,
            tools=given if key == "tools" else None,
            functions=given if key == "functions" else None,
        )


# ---- at every entrance ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm() -> Iterator[Llama]:
    with Llama(demo_model_path(), n_threads=1, n_seq_max=3) as model:
        yield model


BAD = {**S, "minLength": 5, "maxLength": 2}
FORMATS = (
    {"type": "json_object", "schema": BAD},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD}},
    {"type": "json_object", "schema": False},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": False}},
)


@pytest.mark.parametrize("response_format", FORMATS)
@pytest.mark.parametrize("installed", [True, False])
def test_formats_of_replies(
    llm: Llama, response_format: Any, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed:
        monkeypatch.setattr("llama_py.chat.constraints.available", lambda: False)
    with pytest.raises(GrammarError, match="no value fits"):
        llm.create_chat_completion(USER, response_format=response_format)
    after: Any = llm.create_completion("One day", max_tokens=3, temperature=0, ignore_eos=True)
    assert after["usage"]["completion_tokens"] == 3


def test_grammars_from_schemas(llm: Llama) -> None:
    with pytest.raises(GrammarError, match="minLength"):
        LlamaGrammar.from_json_schema(BAD)
    with pytest.raises(GrammarError, match="minLength"):
        compile_schema(BAD, llm.vocab)


def test_grammars_name_line_and_rule(llm: Llama, capfd: pytest.CaptureFixture[str]) -> None:
    """The reason is in the exception, and nothing is printed."""
    with pytest.raises(GrammarError, match="line 2: the rule 'y' is used, but not defined"):
        llm.create_completion("x", grammar='root ::= x\nx ::= "a" | y')
    with pytest.raises(GrammarError, match="asks for more than it allows"):
        LlamaGrammar.from_string('root ::= "a"{5,2}')
    assert capfd.readouterr() == ("", "")


def test_who_refuses_says_why(llm: Llama) -> None:
    """llguidance's reason where it is installed; what is installed need not be installed."""
    for schema in ({"$ref": "https://example.org/x"}, {**S, "pattern": "^(?<=a)b$"}, {"not": N}):
        with pytest.raises(GrammarError) as raised:
            llm.create_chat_completion(
                USER, response_format={"type": "json_object", "schema": schema}
            )
        assert "install" not in str(raised.value)
        assert "cannot be enforced: " in str(raised.value)


def test_what_llguidance_finds_to_be_empty_goes_nowhere_else(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("llama_py.chat.constraints.gbnf_of_schema", asked.append)
    with pytest.raises(GrammarError, match="nsatisfiable"):
        compile_schema({"allOf": [S, N]}, llm.vocab)
    assert not asked


def test_a_grammar_that_takes_long_does_not_stop_others(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samplers are made outside of the engine's lock: a stream goes on meanwhile."""
    during = threading.Event()
    made = threading.Event()
    create = Sampler.__init__

    def slow(self: Sampler, *args: Any, **kwargs: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            during.set()
            assert made.wait(PATIENCE)
        create(self, *args, **kwargs)

    stream: Any = llm.create_completion("One day", max_tokens=60, seed=1, stream=True)
    next(stream)
    monkeypatch.setattr(Sampler, "__init__", slow)
    other = threading.Thread(target=llm.create_completion, args=("Hi",), kwargs={"max_tokens": 2})
    other.start()
    assert during.wait(PATIENCE)
    tokens = sum(1 for _ in stream)
    assert tokens > 5
    assert other.is_alive(), "the stream has waited for the other call's sampler"
    made.set()
    other.join(PATIENCE)
    assert not other.is_alive()


@pytest.mark.parametrize(
    ("schema", "key"),
    [
        ({"type": "string", "maxLength": 5000}, "maxLength"),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 2001}, "maxItems"),
    ],
)
def test_an_upper_bound_that_llama_cpp_would_forget_is_named(
    schema: dict[str, Any], key: str
) -> None:
    """Above 2,000 its grammars take a repetition for an endless one."""
    with pytest.raises(GrammarError, match=rf'#: "{key}": \d+ \(more than 2000\)'):
        gbnf_of_schema(schema)
    assert gbnf_of_schema({**schema, key: 2000})


@pytest.mark.parametrize(("count", "length"), [(20, 1000), (40, 500), (12, 2000)])
def test_many_tools_with_long_texts_can_be_called(llm: Llama, count: int, length: int) -> None:
    """Agents bring such lists. Bounds that are too many together are left open."""
    text = {"type": "string", "maxLength": length}
    parameters = {"type": "object", "properties": {"city": text}, "required": ["city"]}
    tools = [
        {"type": "function", "function": {"name": f"weather_{i}", "parameters": parameters}}
        for i in range(count)
    ]
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    response: Any = llm.create_chat_completion(
        question, tools=tools, tool_choice="required", temperature=0, max_tokens=60
    )
    call = response["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["name"].startswith("weather_")
    assert "city" in json.loads(call["arguments"])


def test_a_choice_in_a_tool_that_is_not_of_the_type_beside_it(llm: Llama) -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer", "enum": ["1", "2"]}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    hello = [{"role": "user", "content": "Hello!"}]
    response: Any = llm.create_chat_completion(hello, tools=[tool], temperature=0)
    assert response["choices"][0]["message"]["content"] == "Hello! How can I help you?"
