"""A reply's parser travels as JSON text: what is read from it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llama_py.chat.stream import parse_reply
from llama_py.core.chat import ReplyParser
from llama_py.errors import TemplateError
from tests.chat import families
from tests.chat.openai import chat_request


def parser(nodes: list[dict[str, Any]], rules: dict[str, int] | None = None, root: int = 0) -> Any:
    arena = {"parsers": nodes, "rules": rules or {}, "root": root}
    return {"format": 2, "generation_prompt": "", "arena": json.dumps(arena)}


def content_of(spec: Any, text: str) -> str:
    with ReplyParser(spec) as reader:
        return str(reader.parse(text)["content"])


UNTIL: dict[str, Any] = {"type": "until", "delimiters": ["<end>"]}
CONTENT: dict[str, Any] = {"type": "tag", "tag": "content", "child": 1}


def test_a_rule_is_found_by_its_name() -> None:
    rule: dict[str, Any] = {"type": "rule", "name": "words", "child": 0, "trigger": False}
    nodes = [CONTENT, UNTIL, rule, {"type": "ref", "name": "words"}]
    assert content_of(parser(nodes, {"words": 2}, root=3), "abc<end>") == "abc<end>"
    end = {"type": "literal", "literal": "<end>"}
    nodes += [{"type": "sequence", "children": [3, 5]}, end]
    assert content_of(parser(nodes, {"words": 2}, root=4), "abc<end>") == "abc"


@pytest.mark.parametrize(
    ("nodes", "root", "problem"),
    [
        ([{"type": "riddle"}], 0, "'riddle' does not exist"),
        ([CONTENT, UNTIL], 2, "node 2 does not exist"),
        ([], 0, "node 0 does not exist"),
        ([{"type": "ref", "name": "nobody"}], 0, "nobody"),
        ([{"type": "literal"}], 0, "literal"),
        ([{"type": "string", "delimiter": ""}], 0, "not one character"),
    ],
)
def test_what_is_no_parser_is_refused(nodes: list[dict[str, Any]], root: int, problem: str) -> None:
    with pytest.raises(TemplateError, match=problem):
        ReplyParser(parser(nodes, root=root))


def test_a_node_that_is_not_there_is_an_error_and_no_crash() -> None:
    with pytest.raises(TemplateError), ReplyParser(parser([CONTENT])) as reader:
        reader.parse("abc")


def test_no_parser_looks_at_tokens() -> None:
    """Replies are parsed by their text alone; one that matched tokens would have to get them."""
    code = (families.template_folder().parents[1] / "common" / "peg-parser.cpp").read_text()
    assert "common_peg_arena::parse" in code
    assert "tokens" not in code


# ---- families with ways of their own -----------------------------------------------------------

K2 = "IFM-K2-Horizon"


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_k2_horizon_reasons_with_each_effort(effort: str) -> None:
    mark = {"low": "ifm|think_faster", "medium": "ifm|think_fast", "high": "ifm|think"}[effort]
    rendered = families.load(K2).render(chat_request(families.USER, reasoning_effort=effort))
    assert rendered.prompt.endswith(f"<{mark}>\n")
    reply = parse_reply(rendered, f"Hm.</{mark}>It is sunny.")
    assert (reply.reasoning, reply.content) == ("Hm.", "It is sunny.")


@pytest.mark.parametrize(
    ("form", "call"),
    [
        ("json", '<ifm|tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</ifm|tool_call>'),
        (
            "xml_typed",
            "<ifm|tool_call>add\n"
            "<ifm|arg_key>a</ifm|arg_key>\n<ifm|arg_type>number</ifm|arg_type>\n"
            "<ifm|arg_value>1</ifm|arg_value>\n<ifm|arg_key>b</ifm|arg_key>\n"
            "<ifm|arg_value>2</ifm|arg_value>\n</ifm|tool_call>",
        ),
    ],
)
def test_k2_horizon_calls_in_the_form_that_was_asked_for(form: str, call: str) -> None:
    request = chat_request(
        families.USER, tools=families.TOOLS, template_kwargs={"tool_call_format": form}
    )
    text = f"Hm.</ifm|think><ifm|tool_calls>\n{call}\n</ifm|tool_calls>"
    reply = parse_reply(families.load(K2).render(request), text)
    assert [(each.name, json.loads(each.arguments)) for each in reply.tool_calls] == [
        ("add", {"a": 1, "b": 2})
    ]


def test_k2_horizon_is_rendered_quickly_with_replies_in_the_history() -> None:
    template = families.load(K2)
    turns = [*families.USER, {"role": "assistant", "content": "Sunny."}, *families.USER]
    for words in ("Sunny.", "Rainy, é."):
        turns[1] = {"role": "assistant", "content": words}
        template.render(chat_request(turns))
    seen: list[Any] = []
    template._engine._handle.apply = lambda *given: seen.append(given)  # type: ignore[method-assign,assignment]
    prompt = template.render(chat_request(turns)).prompt
    assert not seen
    assert "<ifm|think>\n</ifm|think>Rainy, é.<|ifm|im_end|>" in prompt


JP = "llm-jp-llm-jp-4.1-8b-thinking"


@pytest.mark.parametrize("space", ["", " "], ids=["as trained", "as its tokenizer writes"])
def test_llm_jp_with_and_without_spaces_behind_its_marks(space: str) -> None:
    rendered = families.load(JP).render(
        chat_request(families.USER, tools=families.TOOLS, parallel_tool_calls=True)
    )
    thought = f"<|channel|>{space}analysis<|message|>{space}Hm.<|end|><|start|>{space}assistant"
    calls = [
        f" to=functions.{name}<|channel|>{space}commentary <|constrain|>{space}json"
        f"<|message|>{space}{arguments}"
        for name, arguments in (
            ("get_weather", '{"city": "Paris", "days": 1}'),
            ("add", '{"a": 1, "b": 2}'),
        )
    ]
    reply = parse_reply(rendered, thought + f"<|end|><|start|>{space}assistant".join(calls))
    assert reply.reasoning == "Hm."
    assert [call.name for call in reply.tool_calls] == ["get_weather", "add"]
    assert json.loads(reply.tool_calls[0].arguments) == {"city": "Paris", "days": 1}
