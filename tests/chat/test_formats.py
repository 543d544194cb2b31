"""Named chat formats, registered formatters, and Python's Jinja."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llama_py.chat.formats import (
    ChatFormatterResponse,
    Jinja2ChatFormatter,
    chat_formats,
    get_chat_format,
    register_chat_format,
    unregister_chat_format,
)
from llama_py.chat.formats.named import FORMATS
from llama_py.chat.stream import parse_reply
from llama_py.core.model import Model
from llama_py.errors import ParameterError, TemplateError
from tests.chat import families
from tests.chat.families import TOOLS, USER, WEATHER
from tests.chat.openai import chat_request
from tests.models import tiny_model

HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": [{"type": "text", "text": "How"}, {"type": "text", "text": "so?"}]},
]

#: The names that llama-cpp-python knows.
KNOWN = {
    *("alpaca", "baichuan", "baichuan-2", "chatglm3", "chatml", "chatml-function-calling"),
    *("functionary", "functionary-v1", "functionary-v2", "gemma", "intel", "llama-2", "llama-3"),
    *("mistral-instruct", "mistrallite", "oasst_llama", "open-orca", "openbuddy", "openchat"),
    *("phind", "pygmalion", "qwen", "redpajama-incite", "saiga", "snoozy", "vicuna", "zephyr"),
}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model(tiny_model("full")) as model:
        yield model


def prompt(name: str, messages: Any = HISTORY, **options: Any) -> str:
    return FORMATS[name].render(chat_request(messages, **options)).prompt


def test_all_names_exist() -> None:
    assert set(chat_formats()) >= KNOWN


@pytest.mark.parametrize("name", FORMATS)
def test_every_message_appears_once_and_in_order(name: str) -> None:
    rendered = FORMATS[name].render(chat_request(HISTORY))
    places = [rendered.prompt.find(text) for text in ("Be brief.", "Hello", "Hi", "How\nso?")]
    assert -1 not in places
    assert places == sorted(places)
    assert rendered.prompt.endswith(rendered.generation_prompt)
    assert rendered.plain
    assert FORMATS[name].user[0].strip() in rendered.prompt


@pytest.mark.parametrize("name", FORMATS)
def test_a_conversation_grows_at_its_end(name: str) -> None:
    """The prompt of the next turn begins with this one, so that the cache fits."""
    for count in (2, 3):
        shorter = FORMATS[name].render(chat_request(HISTORY[:count], add_generation_prompt=False))
        assert prompt(name).startswith(shorter.prompt)
        assert len(shorter.prompt) in FORMATS[name].render(chat_request(HISTORY)).message_starts


def test_examples() -> None:
    assert prompt("chatml") == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nHow\nso?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert prompt("llama-2") == (
        "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello [/INST] Hi </s><s>[INST] How\nso? [/INST]"
    )
    assert prompt("gemma", HISTORY[:2]) == (
        "<start_of_turn>user\nBe brief.\n\nHello<end_of_turn>\n<start_of_turn>model\n"
    )
    assert prompt("vicuna", USER).endswith("USER: Weather in Paris? ASSISTANT:")


def test_llama_2_without_a_system_message() -> None:
    assert prompt("llama-2", USER) == "[INST] Weather in Paris? [/INST]"


def test_continued_message() -> None:
    rendered = FORMATS["chatml"].render(chat_request(HISTORY[:3], continue_final_message=True))
    assert rendered.prompt.endswith("<|im_start|>assistant\nHi")


def test_named_formats_have_no_tools() -> None:
    with pytest.raises(TemplateError, match="chatml-function-calling"):
        prompt("vicuna", tools=TOOLS)
    with pytest.raises(TemplateError, match="role"):
        prompt("vicuna", [*USER, {"role": "tool", "tool_call_id": "1", "content": "x"}])


def test_unknown_names() -> None:
    with pytest.raises(ParameterError, match="did you mean 'chatml'"):
        get_chat_format("chat-ml")


def test_schema(model: Model) -> None:
    request = chat_request(USER, response_format={"type": "json_object"})
    rendered = get_chat_format("chatml").render(request, model)
    assert rendered.constraint is not None
    logits = np.zeros(model.vocab.n_tokens, dtype=np.float32)
    rendered.constraint().mask(logits)
    assert np.isneginf(logits).any()


def test_chatml_function_calling(model: Model) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [WEATHER]},
        {"role": "tool", "tool_call_id": WEATHER["id"], "content": "sunny"},
    ]
    rendered = get_chat_format("chatml-function-calling").render(
        chat_request(messages, tools=TOOLS), model
    )
    assert "<tool_response>\nsunny\n</tool_response>" in rendered.prompt
    assert '{"name": "get_weather", "arguments": {"city": "Paris", "days": 47}}' in rendered.prompt
    assert rendered.grammar is not None
    reply = parse_reply(
        rendered, '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    )
    assert [(call.name, json.loads(call.arguments)) for call in reply.tool_calls] == [
        ("add", {"a": 1, "b": 2})
    ]


def test_functionary_is_the_models_template(model: Model) -> None:
    rendered = get_chat_format("functionary").render(chat_request(USER), model)
    assert "Weather in Paris?" in rendered.prompt


def test_registered_formatters(model: Model) -> None:
    @register_chat_format("test-format")
    def formatter(*, messages: Any, **kwargs: Any) -> ChatFormatterResponse:
        assert kwargs["tools"] is None
        return ChatFormatterResponse(f"<{messages[-1]['content']}>", stop="end")

    try:
        rendered = get_chat_format("test-format").render(chat_request(USER), model)
        assert rendered.prompt == "<Weather in Paris?>"
        assert rendered.stops == ("end",)
        with pytest.raises(ParameterError, match="overwrite"):
            register_chat_format("test-format")
    finally:
        unregister_chat_format("test-format")
    with pytest.raises(ParameterError, match="registered"):
        unregister_chat_format("test-format")


def test_stopping_criteria_of_a_formatter_are_not_dropped(model: Model) -> None:
    formatter = Jinja2ChatFormatter("{{ messages }}", "</s>", "<s>", stop_token_ids=[3])
    register_chat_format("test-stopping")(formatter)
    try:
        with pytest.raises(TemplateError, match="stopping criteria"):
            get_chat_format("test-stopping").render(chat_request(USER), model)
    finally:
        unregister_chat_format("test-stopping")


# ---- Jinja in Python ---------------------------------------------------------------------------


def render(template: str, **values: Any) -> str:
    return Jinja2ChatFormatter(template, "</s>", "<s>")(messages=USER, **values).prompt


def test_jinja_environment() -> None:
    assert render("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}") == (
        "<s>Weather in Paris?</s>"
    )
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert (
        render("{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "012"
    )
    assert render("{% generation %}x{% endgeneration %}") == "x"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{{ extra }}", extra="y") == "y"


def test_jinja_errors() -> None:
    with pytest.raises(TemplateError, match="not like this"):
        render("{{ raise_exception('not like this') }}")
    with pytest.raises(TemplateError, match="does not parse"):
        render("{% if %}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
    ],
)
def test_jinja_is_a_sandbox(template: str) -> None:
    with pytest.raises(TemplateError):
        render(template)


def test_stop_tokens() -> None:
    response = Jinja2ChatFormatter("x", "</s>", "<s>", stop_token_ids=[7])(messages=USER)
    assert response.stop == ["</s>"]
    assert response.stopping_criteria(np.array([1, 7]), None)
    assert not response.stopping_criteria(np.array([7, 1]), None)


def test_families_can_be_given_as_text() -> None:
    name = "Qwen-Qwen2.5-7B-Instruct"
    assert families.load(name).source == families.source(name)
