"""What is edited in the grammars that llama.cpp's converter writes is found there, or is an error.

Each edit looks for text that llama.cpp wrote. With another version of it, or another kind of
schema, it must not miss in silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from llama_py.chat.grammars.converter import gbnf_of_schema
from llama_py.chat.grammars.gbnf import in_python, in_text, opened, widened, widened_schema
from llama_py.chat.reasoning import reasoning_of
from llama_py.core.chat import schema_to_gbnf
from llama_py.core.grammar.sampler import GrammarSampler
from llama_py.core.vocab import Vocab
from llama_py.errors import GrammarError
from llama_py.params import GrammarSpec
from tests.chat import families
from tests.chat.generated import vocabulary
from tests.chat.openai import chat_request
from tests.chat.test_general_tools import TEXTS, template_of

#: Every kind of rule that the converter writes, and an object whose order is not its own.
MIXED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 9},
        "number": {"type": "number"},
        "when": {"type": "string", "format": "time"},
        "list": {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 3},
        "any": {},
        "pair": {"prefixItems": [{"type": "string"}, {"enum": ["x,y", "<z>", 3]}]},
    },
    "required": ["number"],
    "additionalProperties": False,
}
ANSWER = {"text": "a,b", "number": 1.5, "when": "10:00:00.5Z", "list": [1, 2], "any": {"k": []}}


#: llama.cpp has no grammar of answers for these.
WITHOUT = (
    "GigaChat3-10B-A1.8B",
    "Kimi-K2-Instruct",
    "Kimi-K2-Thinking",
    "Kimi-K3",
    "google-translategemma-4b-it",
    "meetkai-functionary-medium-v3.2",
    "moonshotai-Kimi-K2",
)
_FENCE = "```json\n"
#: What comes before an answer, where it is not the JSON alone.
BEFORE = {
    "Cohere2MoE": "<|START_TEXT|>",
    "MiniMax-M3": _FENCE,
    "deepseek-ai-DeepSeek-V3.2": _FENCE,
    "deepseek-ai-DeepSeek-V4": _FENCE,
    "deepseek-ai-DeepSeek-V4-Flash-0731": _FENCE,
    "google-gemma-4-31B-it": _FENCE,
    "google-gemma-4-31B-it-interleaved": _FENCE,
    "llm-jp-llm-jp-4.1-8b-thinking": "<|channel|> final<|message|> ",
    "mistralai-Ministral-3-14B-Reasoning-2512": _FENCE,
    "muse-glimmer": "<|message|>",
    "openai-gpt-oss-120b": "<|channel|>final<|message|>",
    "unsloth-mistral-Devstral-Small-2507": _FENCE,
}


@pytest.fixture(scope="module")
def vocab() -> Iterator[Vocab]:
    with vocabulary() as found:
        yield found


def takes(vocab: Vocab, spec: GrammarSpec, text: str, begun: bool = False) -> bool:
    """Whether the grammar takes a text, and an end behind it unless it is only begun."""
    sampler = GrammarSampler(vocab, spec)
    try:
        for token in vocab.tokenize(text, add_special=False, parse_special=True):
            if sampler.accept(token) is not None:
                return False
        return begun or sampler.allows(vocab.eog_tokens()[0])
    finally:
        sampler.close()


def around(inner: dict[str, Any]) -> list[tuple[Any, str]]:
    """Schemas with this object at every kind of place, and the text around one of them."""
    typed = {"type": "object", "required": ["x"], "additionalProperties": False}
    return [
        (inner, "{}"),
        ({**typed, "properties": {"x": inner}}, '{"x": {}}'),
        ({"type": "array", "items": inner}, "[{}]"),
        ({"prefixItems": [inner]}, "[{}]"),
        ({"anyOf": [inner, {"type": "null"}]}, "{}"),
        ({"oneOf": [{"type": "null"}, inner]}, "{}"),
        ({"$defs": {"d": inner}, "$ref": "#/$defs/d"}, "{}"),
        ({"$defs": {"d": inner}, "type": "array", "items": {"$ref": "#/$defs/d"}}, "[{}]"),
        ({"type": "object", "additionalProperties": inner}, '{"k": {}}'),
    ]


@pytest.mark.parametrize("number", range(9))
def test_properties_are_in_order_wherever_an_object_is(vocab: Vocab, number: int) -> None:
    schema, text = around(MIXED)[number]
    spec = GrammarSpec(gbnf_of_schema(schema))
    assert takes(vocab, spec, text.replace("{}", json.dumps(ANSWER)))
    assert takes(vocab, spec, text.replace("{}", '{"number": 1, "when": "10:00:00Z"}'))
    assert not takes(vocab, spec, text.replace("{}", '{"number": 1, "text": "a"}'))


@pytest.mark.parametrize("family", [*families.names(), *TEXTS])
def test_in_every_family(vocab: Vocab, family: str) -> None:
    """An answer with a schema, by llama.cpp's own grammar of the reply."""
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": MIXED}}
    rendered = template_of(family).render(chat_request(families.USER, response_format=schema))
    if rendered.grammar is None:
        assert family in WITHOUT  # another one enforces it (``render_constrained``)
        return
    assert family not in WITHOUT
    # What is in order, in the spelling and with the white space of some library.
    answer = json.dumps(ANSWER, indent=2).replace("\n  ", "\n    ")
    before = BEFORE.get(family, "")
    reasoning = reasoning_of(rendered)
    if reasoning.inside:
        # An answer is none before the reasoning has ended.
        assert not takes(vocab, rendered.grammar, answer)
        before = f"Hm.{reasoning.closing}{before}"
    for text in (answer, json.dumps(ANSWER).replace("/", "\\/")):
        assert takes(vocab, rendered.grammar, before + text, begun=True), before
    wrong = '{"number": 1, "text": "a"}'
    assert not takes(vocab, rendered.grammar, before + wrong, begun=True)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "properties": {}, "additionalProperties": False}, "{}"),
        ({"type": "object", "properties": {}}, "{}"),
        ({"type": "object"}, "{}"),
        ({"type": "array", "maxItems": 0}, "[]"),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 1}, "[null]"),
        ({"type": "array", "items": {"type": "null"}, "minItems": 2}, "[null, null]"),
        ({"type": "array", "prefixItems": []}, "[]"),
        ({"type": "array", "prefixItems": [{"type": "null"}]}, "[null]"),
        ({"type": "object", "additionalProperties": {"type": "null"}}, '{"space": null}'),
        (
            {
                "type": "object",
                "properties": {"space": {"const": " space "}, "char": {}, "number": {}, "time": {}},
                "required": ["time", "char"],
                "additionalProperties": {"type": "integer"},
            },
            '{"space": " space ", "char": 1, "number": [], "time": "x", "list": 3}',
        ),
        ({"type": "string", "pattern": "^a space [b-d]*, space x{0,4}$"}, '"a space cc, space x"'),
        ({"enum": [["a", "b"], " space ", {"x": ","}]}, '["a","b"]'),
        ({"anyOf": [{"type": "object", "additionalProperties": False}, {"type": "null"}]}, "{}"),
        (
            {"allOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"b": {}}}]},
            '{"a": null, "b": 1}',
        ),
    ],
)
def test_every_kind_of_schema_is_known(vocab: Vocab, schema: Any, text: str) -> None:
    grammar = gbnf_of_schema(schema)
    assert takes(vocab, GrammarSpec(grammar), text)
    in_python(grammar)
    in_text(grammar, "<")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('char ::= [^"', 'char ::= [^\\x00"'),
        ("decimal-part ::= [0-9]{1,16}", "decimal-part ::= [0-9]+"),
        ("integral-part ::= [0] |", "integral-part ::= ( [0] ) |"),
        ("([eE] [-+]? integral-part)?", "([eE] integral-part)?"),
        ('"." [0-9]{3}', '"." [0-9] [0-9] [0-9]'),
        ('"[" space (', '"[" space space ('),
        (' "," space ', ' "," space space '),
        ('":" space number', '":" ( space ) ( space ) number'),
    ],
)
def test_a_converter_that_writes_otherwise_is_an_error(old: str, new: str) -> None:
    grammar = schema_to_gbnf(MIXED)
    widened_schema(grammar, 4)
    assert old in grammar
    with pytest.raises(GrammarError, match="in an unknown way"):
        widened_schema(grammar.replace(old, new), 4)


def test_values_of_other_notations_are_found() -> None:
    grammar = widened(schema_to_gbnf(MIXED), 4)
    assert '" "? ","' not in in_python(grammar)
    assert '[^"\\\\\\x00-\\x1F\\x3C' in in_text(grammar, "<")
    with pytest.raises(GrammarError, match="in an unknown way"):
        in_python(grammar.replace('" "? "," (joint', '[ ]? "," (joint'))
    with pytest.raises(GrammarError, match="in an unknown way"):
        in_text(grammar.replace('char ::= [^"', 'char ::= [^\\x00"'), "<")


def test_bounds_are_found_however_they_are_written() -> None:
    schema = {"type": "object", "properties": {name: {} for name in "abcd"}}
    kinds = ({"type": "string", "maxLength": 4000}, {"type": "array", "maxItems": 4000})
    schema["properties"] = {f"p{number}": kind for number, kind in enumerate(kinds)}
    grammar = opened(schema_to_gbnf(schema), 100)
    assert "4000" not in grammar
    assert "3999" not in grammar
