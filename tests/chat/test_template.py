"""Rendering: options, errors, boundaries, and several threads."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from llama_py.chat.stream import parse_reply
from llama_py.chat.templates.boundaries import find_starts, learn_delimiters
from llama_py.chat.templates.template import ChatTemplate
from llama_py.core import chat
from llama_py.core.model import Model
from llama_py.errors import ClosedError, ParameterError, TemplateError
from tests.chat import families
from tests.chat.families import TOOLS, USER
from tests.chat.openai import chat_request
from tests.models import tiny_model

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_plain_template() -> None:
    rendered = ChatTemplate.from_text(CHATML).render(chat_request(USER))
    assert rendered.prompt == (
        "<|im_start|>user\nWeather in Paris?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered.generation_prompt == "<|im_start|>assistant\n"
    assert rendered.plain
    assert rendered.grammar is None
    assert rendered.message_starts == (rendered.prompt.index("<|im_start|>assistant"),)
    assert rendered.thinking_start == ""


def test_no_generation_prompt() -> None:
    request = chat_request(USER, add_generation_prompt=False)
    rendered = ChatTemplate.from_text(CHATML).render(request)
    assert rendered.prompt == "<|im_start|>user\nWeather in Paris?<|im_end|>\n"


def test_variables() -> None:
    template = ChatTemplate.from_text("{{ flag }} {{ thing.a | tojson }} {{ enable_thinking }}")
    kwargs = {"flag": "é", "thing": {"a": [1, None]}}
    request = chat_request(USER, template_kwargs=kwargs, enable_thinking=False)
    assert template.render(request).prompt.startswith("é [1, null] False")


def test_reasoning_options() -> None:
    template = families.load("Qwen-Qwen3-0.6B")
    assert template.supports_thinking
    closed = "<think>\n\n</think>\n\n"
    for options in ({"enable_thinking": False}, {"reasoning_effort": "none"}):
        request = chat_request(USER, **options)
        assert template.render(request).prompt.endswith(closed)
    kwargs = chat_request(USER, template_kwargs={"enable_thinking": False})
    assert template.render(kwargs).prompt.endswith(closed)
    assert not template.render(chat_request(USER)).prompt.endswith(closed)
    effort = families.load("openai-gpt-oss-120b")
    assert "Reasoning: high" in effort.render(chat_request(USER, reasoning_effort="high")).prompt


def test_reasoning_left_in_the_content() -> None:
    template = families.load("Qwen-Qwen3-0.6B")
    rendered = template.render(chat_request(USER, reasoning_format="none"))
    reply = parse_reply(rendered, "<think>a</think>b")
    assert reply.content == "<think>a</think>b"
    assert reply.reasoning == ""


def test_one_named_tool() -> None:
    template = families.load("Qwen-Qwen2.5-7B-Instruct")
    choice = {"type": "function", "function": {"name": "add"}}
    every = template.render(chat_request(USER, tools=TOOLS))
    rendered = template.render(chat_request(USER, tools=TOOLS, tool_choice=choice))
    assert rendered.prompt == every.prompt  # so that the cache fits
    assert rendered.grammar is not None
    assert every.grammar is not None
    assert every.grammar.lazy
    assert every.grammar.trigger_patterns == ("<tool_call>\n",)
    assert not rendered.grammar.lazy
    assert "add" in rendered.grammar.gbnf
    assert "get_weather" not in rendered.grammar.gbnf
    assert rendered.grammar_prefill == rendered.generation_prompt
    root = next(line for line in rendered.grammar.gbnf.splitlines() if line.startswith("root"))
    assert "until" not in root  # no words before the call
    assert every == template.render(chat_request(USER, tools=TOOLS))


def test_rendering_again_gives_the_same() -> None:
    """What is remembered about a request is not touched by the next one."""
    template = families.load("Qwen-Qwen3-0.6B")
    schema = {"type": "json_object"}
    requests = [
        chat_request(USER, tools=TOOLS),
        chat_request(USER, tools=TOOLS, response_format=schema),
        chat_request(USER, tools=TOOLS, tool_choice="required"),
        chat_request(USER, response_format=schema),
    ]
    first = [template.render(request) for request in requests]
    assert [template.render(request) for request in requests] == first
    assert [template.render(request) for request in reversed(requests)] == first[::-1]
    lazy = [rendered.grammar is not None and rendered.grammar.lazy for rendered in first]
    assert lazy == [True, False, False, False]


@pytest.mark.parametrize("called", [False, True])
def test_tool_choice_none_shows_only_tools_that_were_called(called: bool) -> None:
    template = families.load("Qwen-Qwen2.5-7B-Instruct")
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    earlier = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    messages = [*USER, *(earlier if called else ())]
    rendered = template.render(chat_request(messages, tools=TOOLS, tool_choice="none"))
    # The list of tools is what is cached of such a conversation.
    assert ("<tools>" in rendered.prompt) == called
    assert rendered.grammar is None
    assert parse_reply(rendered, "<tool_call>x").content == "<tool_call>x"


def test_continued_reasoning() -> None:
    template = families.load("Qwen-Qwen3-0.6B")
    begun = {"role": "assistant", "content": "", "reasoning_content": "Let me"}
    rendered = template.render(chat_request([*USER, begun], continue_final_message=True))
    assert rendered.prompt.endswith("<think>\nLet me") or rendered.prompt.endswith("<think>Let me")
    reply = parse_reply(rendered, " see.</think>Fine.")
    assert reply.reasoning.strip() == "see."
    assert reply.content == "Fine."


def test_errors() -> None:
    with pytest.raises(TemplateError):
        ChatTemplate.from_text("{% if %}")
    with pytest.raises(TemplateError, match="neither a model nor a template"):
        ChatTemplate.from_text("")
    refusing = ChatTemplate.from_text("{{ raise_exception('no, thanks') }}")
    with pytest.raises(TemplateError, match="no, thanks"):
        refusing.render(chat_request(USER))
    template = ChatTemplate.from_text(CHATML)
    template.close()
    with pytest.raises(ClosedError):
        template.render(chat_request(USER))


@pytest.mark.parametrize("text", ["a\x00b", "é" * 10_000, "{{ x }}", "<|im_end|>"])
def test_awkward_text(text: str) -> None:
    template = ChatTemplate.from_text(CHATML)
    request = chat_request([{"role": "user", "content": text}])
    assert text in template.render(request).prompt


def test_model_template() -> None:
    with Model(tiny_model("full")) as model:
        own = ChatTemplate.from_model(model)
        assert own.explicit
        assert "Weather in Paris?" in own.render(chat_request(USER)).prompt
        other = ChatTemplate.from_model(model, "{{ bos_token }}|{{ messages[0].content }}")
    # Neither needs the model any more.
    assert other.render(chat_request(USER)).prompt.endswith("|Weather in Paris?")
    assert own.render(chat_request(USER)).prompt.endswith("<|im_start|>assistant\n")


def test_what_a_template_can_do() -> None:
    qwen, gemma = families.load("Qwen-Qwen3-0.6B"), families.load("google-gemma-2-2b-it")
    assert qwen.caps["supports_tool_calls"]
    assert not gemma.caps["supports_tool_calls"]
    assert not gemma.supports_thinking
    assert qwen.source.startswith("{%- if tools %}")


def test_the_date_can_be_set() -> None:
    template = ChatTemplate.from_text("{{ date_string }}")
    assert template.render(chat_request(USER, now=86400 * 365)).prompt.startswith("01 Jan 1971")


def test_several_threads() -> None:
    template = families.load("Qwen-Qwen3-0.6B")
    requests = [chat_request([{"role": "user", "content": str(i)}], tools=TOOLS) for i in range(40)]
    expected = [template.render(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(template.render, requests)) == expected


def test_learned_delimiters() -> None:
    def render(messages: list[dict[str, Any]]) -> str:
        return "".join(f"[[{m['role']}]]{m['content']}\n" for m in messages)

    assert set(learn_delimiters(render)) == {("user", "[[user]]"), ("assistant", "[[assistant]]")}


def test_no_delimiters_where_there_are_none() -> None:
    def refuse(messages: list[dict[str, Any]]) -> str:
        raise TemplateError("no")

    assert learn_delimiters(refuse) == ()
    assert learn_delimiters(lambda messages: "") == ()
    assert find_starts("some text", ()) == ()


def test_starts_are_stable_when_a_conversation_grows() -> None:
    template = families.load("Qwen-Qwen2.5-7B-Instruct")
    turns: list[dict[str, Any]] = [{"role": "system", "content": "s"}]
    before: tuple[int, ...] = ()
    for i in range(6):
        turns.append({"role": "user", "content": f"question {i}"})
        rendered = template.render(chat_request(turns))
        assert rendered.message_starts[: len(before)] == before
        before = rendered.message_starts
        turns.append({"role": "assistant", "content": f"answer {i}"})


def test_tool_results_of_any_size_render() -> None:
    big = json.dumps({"text": "x" * 100_000})
    messages: list[dict[str, Any]] = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [families.WEATHER]},
        {"role": "tool", "tool_call_id": families.WEATHER["id"], "content": big},
    ]
    rendered = families.load("Qwen-Qwen3-0.6B").render(chat_request(messages, tools=TOOLS))
    assert big in rendered.prompt


def test_long_texts_are_written_as_json_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads wait as long as a text is written in one call."""
    text = 'a "word"\\ \n\0 \u00e9\u20ac\U0001f600\ud800' * 30_000
    value = {
        "messages": [{"content": text, "role": "user"}, {"content": "b"}],
        "now": 1.5,
        "é": text,
    }
    expected = json.dumps(value).encode()
    sizes: list[int] = []
    dumps = json.dumps

    def watched(value: Any, **options: Any) -> str:
        written = dumps(value, **options)
        sizes.append(len(written))
        return written

    monkeypatch.setattr(json, "dumps", watched)
    assert chat._dump(value) == expected
    assert max(sizes) < len(expected) / 3
    with pytest.raises(ParameterError):
        chat._dump({"text": text, "number": float("nan")})
    deep: Any = "a"
    for _ in range(700):
        deep = [deep]
    assert chat._dump(deep) == dumps(deep).encode(), "as deep as the json module reaches"


_ENDLESS = "{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        # K2 Horizon's: llama.cpp gives each reply a reasoning.
        "{# <|ifm|im_start|> <ifm|tool_calls> #}{% for m in messages %}"
        "{% if m.role == 'assistant' and m.reasoning_content is not defined %}"
        "{{ raise_exception('no reasoning') }}{% elif m.role == 'assistant' %}"
        f"{_ENDLESS}{{% endif %}}{{% endfor %}}",
        # TranslateGemma's: it gives each text its languages.
        "{# [source_lang_code] [target_lang_code] #}{% for m in messages %}"
        "{% if m.content is string %}{{ raise_exception('no languages') }}{% else %}"
        f"{_ENDLESS}{{% endif %}}{{% endfor %}}",
    ],
    ids=["reasoning", "languages"],
)
def test_what_only_llama_cpp_would_run_without_an_end_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="takes more than"):
        ChatTemplate.from_text(source)
