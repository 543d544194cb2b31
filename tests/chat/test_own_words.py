"""A constraint leaves a reply alone that fits it: the same tokens, not only the same meaning.

Random models are steered to say a text; the same model under a constraint has to say it with the
very same tokens. ``spoken`` makes the schemas, and texts that fit them in the styles of models.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from llama_py import Llama
from llama_py.chat import constraints
from llama_py.chat.grammars.converter import gbnf_of_schema
from tests.chat import families
from tests.chat.spoken import Case, make_call, make_case
from tests.steering import Steer, split_tokens, vocabulary_model

BACKENDS = ("llguidance", "gbnf")
VOCABULARIES = ("qwen2", "llama-spm", "phi-3")
ASK = [{"role": "user", "content": "Go on."}]
#: Templates of three ways to write a call, and the text of one call in each.
CALLS = {
    "Qwen-Qwen2.5-7B-Instruct": ("<tool_call>\n", "arguments", "\n</tool_call>"),
    "Qwen-Qwen3-0.6B": ("<think>\nHm {.\n</think>\n\n<tool_call>\n", "arguments", "\n</tool_call>"),
    "meta-llama-Llama-3.1-8B-Instruct": ("", "parameters", ""),
}


@pytest.fixture(scope="module", params=VOCABULARIES)
def llm(request: pytest.FixtureRequest) -> Iterator[Llama]:
    with Llama(str(vocabulary_model(request.param)), n_ctx=4096, n_threads=1) as llm:
        yield llm


def replied(llm: Llama, tokens: list[int], stream: bool, **options: Any) -> dict[str, Any]:
    """The greedy reply of a model that wants these tokens, and the tokens that it said."""
    answer: Any = llm.create_chat_completion(
        options.pop("messages", ASK),
        temperature=0,
        max_tokens=len(tokens) + 40,
        logits_processor=[Steer(tokens)],
        stream=stream,
        **options,
    )
    message: dict[str, Any] = {"content": "", "calls": {}}
    for chunk in answer if stream else [answer]:
        choice = chunk["choices"][0]
        part = choice["delta" if stream else "message"]
        message["content"] += part.get("content") or ""
        for number, call in enumerate(part.get("tool_calls") or ()):
            names = message["calls"].setdefault(call.get("index", number), ["", ""])
            names[0] += call["function"].get("name") or ""
            names[1] += call["function"].get("arguments") or ""
    return {**message, "tokens": list(llm.runtime.last.record.generated)}


def tokens_of(llm: Llama, text: str, seed: int) -> list[int]:
    return [*split_tokens(llm.vocab, text, random.Random(seed)), llm.token_eos()]


def use(backend: str, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(constraints, "available", lambda: backend == "llguidance")


def check_schema(llm: Llama, case: Case, seed: int, backend: str, stream: bool) -> None:
    """The law, for one schema and a text that fits it."""
    jsonschema.validate(json.loads(case.text), case.schema)
    tokens = tokens_of(llm, case.text, seed)
    free = replied(llm, tokens, stream)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": case.schema}}
    held = replied(llm, tokens, stream, response_format=form)
    assert held["tokens"] == tokens, (seed, llm.vocab.detokenize(held["tokens"]), case)
    if backend == "gbnf":  # llama.cpp's parser of replies takes white space around an answer off
        free["content"], held["content"] = free["content"].strip(), held["content"].strip()
    assert held == free


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_fits_its_schema_is_left_alone(
    llm: Llama, backend: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(backend, monkeypatch)
    for seed in range(8):
        case = make_case(seed)
        if backend == "llguidance" or case.gbnf:
            check_schema(llm, case, seed, backend, stream)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stream", [False, True])
def test_the_law_of_schemas(
    llm: Llama, backend: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(backend, monkeypatch)
    done = 0
    for seed in range(1000, 1330):
        case = make_case(seed)
        if backend == "llguidance" or case.gbnf:
            check_schema(llm, case, seed, backend, stream)
            done += 1
    print(f"{backend}, stream={stream}: {done} schemas, no violation")
    assert done >= 300


def test_completions_with_a_grammar_are_left_alone(llm: Llama) -> None:
    for seed in range(100, 106):
        case = make_case(seed)
        if not case.gbnf:
            continue
        tokens = tokens_of(llm, case.text, seed)
        rules = gbnf_of_schema(case.schema)
        for stream in (False, True):
            answer: Any = llm.create_completion(
                "Go on.",
                grammar=rules,
                temperature=0,
                max_tokens=len(tokens) + 40,
                logits_processor=[Steer(tokens)],
                stream=stream,
            )
            text = "".join(c["choices"][0]["text"] for c in (answer if stream else [answer]))
            assert text == case.text
            assert list(llm.runtime.last.record.generated) == tokens


# ---- tools --------------------------------------------------------------------------------


def check_call(llm: Llama, template: str, seed: int, choice: Any, stream: bool) -> None:
    """The law, for one call of a tool."""
    before, key, after = CALLS[template]
    schema, text = make_call(seed, "look_up", key)
    function = {"name": "look_up", "description": "x", "parameters": schema}
    other = families.tool("other", a="string")
    tokens = tokens_of(llm, before + text + after, seed)
    tools = [other, {"type": "function", "function": function}]
    held = replied(llm, tokens, stream, tools=tools, tool_choice=choice)
    assert held["tokens"] == tokens, (seed, llm.vocab.detokenize(held["tokens"]), schema)
    assert list(held["calls"]) == [0]
    name, arguments = held["calls"][0]
    assert (name, json.loads(arguments)) == ("look_up", json.loads(text)[key])


def choices() -> list[Any]:
    return ["required", {"type": "function", "function": {"name": "look_up"}}, "auto"]


@pytest.mark.parametrize("template", CALLS)
def test_a_call_that_fits_its_tool_is_left_alone(template: str) -> None:
    path = str(vocabulary_model("qwen2"))
    with Llama(path, chat_template=families.source(template), n_ctx=4096, n_threads=1) as llm:
        for seed in range(4):
            for choice in choices():
                check_call(llm, template, seed, choice, stream=bool(seed % 2))


def test_arguments_come_in_the_order_of_the_tool() -> None:
    """llama.cpp's grammar would want what is required first."""
    tool = families.tool("look_up", unit="string", city="string")
    tool["function"]["parameters"]["required"] = ["city"]
    text = (
        '<tool_call>\n{"name": "look_up", "arguments": {"unit": "C", "city": "Rome"}}\n</tool_call>'
    )
    template = families.source("Qwen-Qwen2.5-7B-Instruct")
    path = str(vocabulary_model("llama-spm"))
    with Llama(path, chat_template=template, n_ctx=4096, n_threads=1) as llm:
        for choice in choices():
            tokens = tokens_of(llm, text, 0)
            held = replied(llm, tokens, stream=False, tools=[tool], tool_choice=choice)
            assert held["tokens"] == tokens
            assert held["calls"] == {0: ["look_up", '{"unit": "C", "city": "Rome"}']}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("template", CALLS)
@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_law_of_calls(template: str, name: str) -> None:
    path = str(vocabulary_model(name))
    with Llama(path, chat_template=families.source(template), n_ctx=4096, n_threads=1) as llm:
        for seed in range(1000, 1100):
            for choice in choices():
                check_call(llm, template, seed, choice, stream=bool(seed % 2))
