"""Fields of other servers: none that limits or constrains a reply is ignored, in any dialect."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_py.core.model import Model
from llama_py.dialects.anthropic.messages import read_call
from llama_py.dialects.failures import RequestError, failure_of
from llama_py.dialects.known_fields import (
    IDLE,
    OWN,
    READ,
    REFUSED,
    RENAMED,
    WORDS,
    Dialect,
    meaning,
    ours,
)
from llama_py.dialects.limits import TEMPLATE_KWARGS, RequestLimits
from llama_py.dialects.llama_server.bodies import read_native
from llama_py.dialects.openai.bodies import read_chat, read_completion
from llama_py.dialects.openai.chat import parse_chat
from llama_py.dialects.responses.parse import parse_responses
from llama_py.engine.request import GenerationRequest
from llama_py.errors import ParameterError
from llama_py.params import ModelParams
from tests.chat import families
from tests.dialects.playing import Context
from tests.models import tiny_model
from tools import field_tables

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"
LIMITS = RequestLimits()
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"lamp": {"enum": ["on", "off"]}}, "required": ["lamp"]}
GENERATING = (
    Dialect.CHAT,
    Dialect.COMPLETION,
    Dialect.RESPONSES,
    Dialect.MESSAGES,
    Dialect.NATIVE,
)
CHATS = (Dialect.CHAT, Dialect.RESPONSES, Dialect.MESSAGES)

_READERS: dict[Dialect, tuple[Callable[..., Any], dict[str, Any]]] = {
    Dialect.CHAT: (read_chat, {"messages": HELLO}),
    Dialect.COMPLETION: (read_completion, {"prompt": "hello"}),
    Dialect.RESPONSES: (parse_responses, {"input": "hello"}),
    Dialect.MESSAGES: (read_call, {"messages": HELLO}),
    Dialect.NATIVE: (read_native, {"prompt": "hello"}),
}


def read(dialect: Dialect, context: Context, **fields: Any) -> GenerationRequest:
    reader, body = _READERS[dialect]
    request: GenerationRequest = reader(context, {**body, **fields}, LIMITS, "tiny").requests[0]
    return request


def constrained(request: GenerationRequest) -> bool:
    return request.sampling.grammar is not None or request.sampling.constraint is not None


def peers() -> Iterator[str]:
    """Every field of every request of a known server."""
    for server in json.loads((HERE.parent / "data" / "peer_fields.json").read_text()).values():
        yield from itertools.chain.from_iterable(v for k, v in server.items() if k != "version")
    anthropic = pytest.importorskip("anthropic.types.message_create_params")
    beta = pytest.importorskip("anthropic.types.beta.message_create_params")
    chats = pytest.importorskip("openai.types.chat.completion_create_params")
    completions = pytest.importorskip("openai.types.completion_create_params")
    responses = pytest.importorskip("openai.types.responses.response_create_params")
    vectors = pytest.importorskip("openai.types.embedding_create_params")
    for declared in (
        anthropic.MessageCreateParamsBase,
        beta.MessageCreateParamsBase,
        chats.CompletionCreateParamsBase,
        completions.CompletionCreateParamsBase,
        responses.ResponseCreateParamsBase,
        vectors.EmbeddingCreateParams,
    ):
        yield from declared.__annotations__
    ollama = pytest.importorskip("ollama._types")
    for model in (ollama.ChatRequest, ollama.GenerateRequest, ollama.EmbedRequest, ollama.Options):
        yield from model.model_fields


def test_every_field_of_every_server_is_known_in_every_dialect() -> None:
    fields = {*peers()}
    found = {(each, name): meaning(each, name) for each in Dialect for name in fields}
    assert {*found.values()} <= {*WORDS}
    assert [key for key, word in found.items() if word == "unknown"] == []
    assert len(found) > 1500


@pytest.mark.parametrize("name", ["extra_body", "sampling_params", "options"])
def test_fields_in_a_wrapper_of_a_client_are_not_lost(name: str) -> None:
    """``extra_body`` is an argument of OpenAI's client, which other clients send as a field."""
    for dialect in GENERATING:
        with pytest.raises(RequestError, match="its members are fields of the body here"):
            ours(dialect, {name: {"guided_json": SCHEMA}}, LIMITS)


def test_nothing_is_in_two_tables() -> None:
    tables = (RENAMED.keys(), READ.keys(), REFUSED.keys(), IDLE)
    for one, other in itertools.combinations(tables, 2):
        assert one & other == set()


def test_fields_that_are_refused_are_refused(context: Context) -> None:
    """With a value that asks for something; null and false ask for nothing."""
    for dialect, name in itertools.product(GENERATING, REFUSED):
        if meaning(dialect, name) != "refused":
            continue
        with pytest.raises(RequestError, match=rf"^{name} is not supported here: \w") as caught:
            ours(dialect, {name: "x"}, LIMITS)
        assert (caught.value.failure.param, caught.value.failure.code) == (
            name,
            "unsupported_parameter",
        )
        for nothing in (None, False, "", [], *REFUSED[name][1]):
            assert ours(dialect, {name: nothing}, LIMITS).fields == {}


@pytest.mark.parametrize("dialect", GENERATING)
@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": SCHEMA},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"response_format": {"type": "json_object"}},
        {"grammar": 'root ::= "z"'},
        {"guided_json": SCHEMA},
        {"guided_choice": ["yes", 'say "no"\n\\']},
        {"guided_grammar": 'root ::= "z"'},
        {"ebnf": 'root ::= "z"'},
        {"format": "json"},
        {"format": SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"choice": ["a", "b"], "json": None}},
        {"structured_outputs": {"json_object": True}},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_constraint_holds_in_every_dialect(
    context: Context, dialect: Dialect, fields: dict[str, Any]
) -> None:
    assert not constrained(read(dialect, context))
    assert constrained(read(dialect, context, **fields))


@pytest.mark.parametrize("dialect", GENERATING)
@pytest.mark.parametrize(
    "name", ["n_predict", "num_predict", "max_new_tokens", "max_output_tokens", "max_tokens"]
)
def test_a_limit_holds_in_every_dialect(context: Context, dialect: Dialect, name: str) -> None:
    assert read(dialect, context, **{name: 3}).generation.max_tokens == 3


@pytest.mark.parametrize("dialect", GENERATING)
def test_what_ends_a_reply_and_how_tokens_are_chosen(context: Context, dialect: Dialect) -> None:
    for name in ("stop", "stop_sequences"):
        assert "END" in read(dialect, context, **{name: ["END"]}).generation.stop
    request = read(
        dialect, context, stop_token_ids=[7], ignore_eos=True, min_new_tokens=2, timeout=5.0,
        max_new_tokens=9, repetition_penalty=1.5, repeat_last_n=7, mirostat=2, seed=5, min_p=0.5,
        temp=0.25,
    )  # fmt: skip
    assert request.generation.stop_tokens == {7}
    assert (request.generation.ignore_eos, request.generation.timeout) == (True, 5.0)
    sampling = request.sampling
    assert (sampling.min_tokens, sampling.repeat_penalty, sampling.penalty_last_n) == (2, 1.5, 7)
    assert (sampling.mirostat, sampling.seed, sampling.min_p) == (2, 5, 0.5)
    assert sampling.temperature == 0.25


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"think": False}, {"enable_thinking": False}),
        ({"think": "low"}, {"reasoning_effort": "low"}),
        ({"enable_thinking": False}, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"reasoning_budget_tokens": 9}, {"reasoning_budget": 9}),
        ({"thinking_token_budget": 9}, {"reasoning_budget": 9}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"documents": [{"text": "x"}]}, {"template_kwargs": {"documents": [{"text": "x"}]}}),
        ({"chat_template_kwargs": {"thinking": True}}, {"template_kwargs": {"thinking": True}}),
    ],
    ids=lambda value: str(value)[:50],
)
def test_reasoning_and_variables_in_every_dialect_of_chats(
    context: Context, dialect: Dialect, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    read(dialect, context, **fields)
    for name, value in expected.items():
        assert getattr(context.asked, name) == value


def test_no_limit_is_no_limit(context: Context) -> None:
    for dialect, value in itertools.product(GENERATING, (-1, -2)):
        assert read(dialect, context, num_predict=value).generation.max_tokens in (None, 16)


@pytest.mark.parametrize(
    ("dialect", "fields", "message"),
    [
        (Dialect.CHAT, {"n_predict": 3, "max_tokens": 4}, "n_predict contradicts max_tokens"),
        (Dialect.NATIVE, {"n_predict": 3, "max_tokens": 4}, "max_tokens contradicts n_predict"),
        (Dialect.CHAT, {"num_predict": 3, "n_predict": 4}, "n_predict contradicts num_predict"),
        (
            Dialect.CHAT,
            {"json_schema": SCHEMA, "response_format": {"type": "json_object"}},
            "json_schema contradicts response_format",
        ),
        (
            Dialect.RESPONSES,
            {"json_schema": SCHEMA, "text": {"format": {"type": "json_object"}}},
            "json_schema contradicts text.format",
        ),
        (
            Dialect.MESSAGES,
            {"json_schema": SCHEMA, "output_format": {"type": "json_schema", "schema": {}}},
            "output_format contradicts json_schema",
        ),
        (Dialect.COMPLETION, {"json_schema": SCHEMA, "grammar": "x"}, "contradicts grammar"),
        (Dialect.NATIVE, {"json_schema": SCHEMA, "grammar": "x"}, "contradicts grammar"),
        (Dialect.RESPONSES, {"json_schema": SCHEMA, "ebnf": 'root ::= "z"'}, "contradicts"),
    ],
)
def test_two_names_of_one_thing(
    context: Context, dialect: Dialect, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises((RequestError, ParameterError), match=message):
        read(dialect, context, **fields)


def test_two_names_with_the_same_value(context: Context) -> None:
    assert read(Dialect.CHAT, context, n_predict=3, max_tokens=3.0).generation.max_tokens == 3
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    assert constrained(read(Dialect.CHAT, context, json_schema=SCHEMA, response_format=form))


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"n_predict": "x"}, "n_predict", "n_predict must be an integer"),
        ({"repetition_penalty": "x"}, "repetition_penalty", "repetition_penalty must be a number"),
        ({"json_schema": "x"}, "json_schema", "json_schema is 'x', which is not JSON"),
        ({"format": "yaml"}, "format", "format is 'yaml'; expected 'json' or a JSON schema"),
        ({"guided_choice": "x"}, "guided_choice", "guided_choice must be a list of strings"),
        (
            {"structured_outputs": {"regex": "a+"}},
            "structured_outputs.regex",
            "structured_outputs.regex is not supported here: pass response_format",
        ),
        ({"suffix": "x"}, "suffix", "/v1/chat/completions has no such thing; it is for /v1/compl"),
        ({"regex": "a+"}, "regex", "regex is not supported here: pass response_format"),
    ],
)
def test_errors_name_the_field_that_was_sent(
    context: Context, fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises((RequestError, ParameterError)) as caught:
        read(Dialect.CHAT, context, **fields)
    error = caught.value
    assert message in str(error)
    assert param == failure_of(error).param


@pytest.mark.parametrize("dialect", [Dialect.COMPLETION, Dialect.NATIVE])
def test_what_needs_a_template_is_refused_without_one(context: Context, dialect: Dialect) -> None:
    for fields in ({"think": True}, {"reasoning_budget": 5}, {"thinking": {"type": "enabled"}}):
        with pytest.raises(RequestError, match="has no such thing; it is for /v1/chat/compl"):
            read(dialect, context, **fields)
    read(dialect, context, think=False, reasoning_budget_tokens=-1, tools=[], tool_choice="none")


def test_a_text_of_choices_is_one_of_them(context: Context) -> None:
    """And nothing in them is read as a grammar."""
    request = read(Dialect.CHAT, context, guided_choice=['say "no"\n', "\\x"])
    assert request.sampling.grammar is not None
    assert request.sampling.grammar.gbnf == (
        r'root ::= "say \U00000022no\U00000022\U0000000A" | "\U0000005Cx"'
    )


def test_unknown_names_stay_unknown() -> None:
    assert {meaning(each, "temprature") for each in Dialect} == {"unknown"}
    assert ours(Dialect.CHAT, {"temprature": 1}, LIMITS).fields == {}
    with pytest.raises(RequestError, match="'temprature' is not known"):
        ours(Dialect.MESSAGES, {"temprature": 1}, RequestLimits(strict=True))


def test_the_page_lists_them() -> None:
    assert (DOCS / "fields.md").read_text() == field_tables.page(), (
        "run python -m tools.field_tables"
    )


# ---- variables of templates ----------------------------------------------------------------------


def documented_variables() -> list[str]:
    """The variables in the table of docs/chat.md."""
    rows = (DOCS / "chat.md").read_text().partition("| family | variable |")[2].partition("\n\n")[0]
    cells = [row.split("|")[2] for row in rows.splitlines()[2:]]
    return [name.strip(" `") for cell in cells for name in cell.split(",")]


def test_variables_that_the_docs_tell_to_pass_are_passed_on(context: Context) -> None:
    names = documented_variables()
    assert "source_lang_code" in names
    assert {*names} <= TEMPLATE_KWARGS
    for dialect in CHATS:
        given = dict.fromkeys(names, "x")
        read(dialect, context, chat_template_kwargs=given)
        assert context.asked is not None
        assert context.asked.template_kwargs == given


@pytest.mark.parametrize("dialect", CHATS)
def test_other_variables_are_refused(context: Context, dialect: Dialect) -> None:
    with pytest.raises(RequestError, match="template_kwargs") as caught:
        read(dialect, context, chat_template_kwargs={"mystery": 1})
    assert caught.value.failure.param == "chat_template_kwargs.mystery"


#: The prompt's parts in each dialect, which has another name for texts and for the conversation.
_PARTS = {
    Dialect.CHAT: ("messages", "text"),
    Dialect.RESPONSES: ("input", "input_text"),
    Dialect.MESSAGES: ("messages", "text"),
}


@pytest.mark.parametrize("dialect", CHATS)
def test_languages_within_a_text_part(context: Context, dialect: Dialect) -> None:
    """TranslateGemma's own form. The last one counts, and what is said outside before that."""
    name, kind = _PARTS[dialect]
    first = {"type": kind, "text": "Hallo.", "source_lang_code": "de", "target_lang_code": "en"}
    last = {"type": kind, "text": "Ja.", "target_lang_code": "fr-CA", "source_lang_code": None}
    turns = [
        {"role": "user", "content": [first]},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": [last]},
    ]
    read(dialect, context, **{name: turns})
    assert context.asked is not None
    assert context.asked.template_kwargs == {"source_lang_code": "de", "target_lang_code": "fr-CA"}
    read(dialect, context, **{name: turns, "chat_template_kwargs": {"target_lang_code": "it"}})
    assert context.asked.template_kwargs["target_lang_code"] == "it"
    wrong = [{"role": "user", "content": [{**first, "source_lang_code": 5}]}]
    with pytest.raises(ParameterError, match=rf"{name}\[0\]\.content\[0\]\.source_lang_code"):
        read(dialect, context, **{name: wrong})


def test_languages_within_a_text_part_in_process() -> None:
    template = families.load("google-translategemma-4b-it")
    part = {"type": "text", "text": "Hi.", "source_lang_code": "en", "target_lang_code": "it"}
    with Model(tiny_model("full"), ModelParams(vocab_only=True)) as model:
        context = Context(model.vocab, template)
        prompt = parse_chat(context, [{"role": "user", "content": [part]}]).rendered.prompt
    assert "a professional English (en) to Italian (it) translator" in prompt


@pytest.mark.parametrize("dialect", GENERATING)
def test_biases_as_pairs_in_every_dialect(context: Context, dialect: Dialect) -> None:
    bias = read(dialect, context, logit_bias=[[5, -2.5], [6, False]]).sampling.logit_bias
    assert bias == {5: -2.5, 6: -math.inf}


def test_every_own_field_has_a_dialect() -> None:
    assert {*OWN} == {*Dialect}
