"""Quick rendering gives what llama.cpp gives, for every template and every turn."""

from __future__ import annotations

import time
from typing import Any

import pytest

from llama_py.chat.messages import ChatRequest
from llama_py.chat.templates.inputs import inputs_of
from llama_py.chat.templates.quick import QuickRenderer
from llama_py.chat.templates.template import ChatTemplate
from llama_py.errors import TemplateError
from tests.chat import families
from tests.chat.families import TOOLS, WEATHER
from tests.chat.openai import chat_request


def conversation(turns: int, with_tools: bool) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be <brief>, é."}]
    for i in range(turns):
        messages.append({"role": "user", "content": f'Question "{i}"?\n'})
        if with_tools and i % 2:
            call = {**WEATHER, "id": f"call{i:05d}"}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append(
                {"role": "tool", "tool_call_id": call["id"], "content": f'{{"a": {i}}}'}
            )
        messages.append({"role": "assistant", "content": f"Answer {i}."})
    messages.append({"role": "user", "content": "Last?"})
    return messages


def requests(with_tools: bool) -> list[ChatRequest]:
    tools = TOOLS if with_tools else None
    return [chat_request(conversation(turns, with_tools), tools=tools) for turns in (1, 2, 3, 5)]


@pytest.mark.parametrize("with_tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("name", families.names())
def test_quick_is_what_llama_cpp_says(name: str, with_tools: bool) -> None:
    template = families.load(name)
    for request in requests(with_tools):
        inputs = inputs_of(request)
        try:
            expected = template._handle.apply(inputs)
        except TemplateError:
            assert template._quick.render(inputs) is None
            continue
        got = template._quick.render(inputs)
        if got is None:
            template._quick.learn(inputs, expected)
        else:
            assert got == expected


def test_most_templates_are_quick() -> None:
    quick = 0
    for name in families.names():
        template = families.load(name)
        for request in requests(False):
            template.render(request)
        quick += template._quick.render(inputs_of(requests(False)[-1])) is not None
    assert quick >= 0.85 * len(families.names())


def test_what_is_left_to_llama_cpp() -> None:
    template = families.load("Qwen-Qwen3-0.6B")
    begun = [*conversation(1, False), {"role": "assistant", "content": "It"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}]
    for request in (
        chat_request(begun, continue_final_message=True),
        chat_request(conversation(1, False), now=0),
        chat_request(parts),
    ):
        template.render(request)
        assert template._quick.render(inputs_of(request)) is None


def test_the_order_of_results_is_part_of_the_shape() -> None:
    template = families.load("deepseek-ai-DeepSeek-V4")
    calls = [{**WEATHER, "id": call_id} for call_id in ("a", "b")]
    results = [{"role": "tool", "tool_call_id": i, "content": f"result {i}"} for i in ("a", "b")]
    head: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": calls},
    ]
    for order in (results, results[::-1]) * 2:
        request = chat_request([*head, *order], tools=TOOLS)
        assert (
            template.render(request).prompt == template._handle.apply(inputs_of(request))["prompt"]
        )


def test_other_options_are_learned_apart() -> None:
    template = families.load("Qwen-Qwen3-0.6B")
    messages = conversation(3, False)
    for thinking in (True, False, True, False):
        rendered = template.render(chat_request(messages, enable_thinking=thinking))
        assert rendered.prompt.endswith("</think>\n\n") != thinking


def test_the_number_of_shapes_is_limited() -> None:
    template = families.load("Qwen-Qwen2.5-7B-Instruct")
    for i in range(80):
        request = chat_request(conversation(1, False), template_kwargs={"n": i})
        template.render(request)
    assert len(template._quick._known) == 64


def test_a_template_that_python_cannot_read() -> None:
    info = {"source": "{% if %}", "source_tool_use": "", "caps": {}}
    quick = QuickRenderer(lambda: info, "", "")
    inputs = inputs_of(chat_request(conversation(1, False)))
    quick.learn(inputs, {"prompt": "x", "generation_prompt": ""})
    assert quick.render(inputs) is None


@pytest.mark.parametrize("error", [TemplateError, RecursionError, KeyError, MemoryError])
def test_whatever_goes_wrong_in_the_short_cut_llama_cpp_renders(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    template = families.load("Qwen-Qwen2.5-7B-Instruct")
    expected = [template.render(request).prompt for request in requests(False)]

    def fail(*_: object, **__: object) -> None:
        raise error("no room")

    monkeypatch.setattr(QuickRenderer, "_values", fail)
    assert [template.render(request).prompt for request in requests(False)] == expected


def test_a_hundred_turns_render_in_milliseconds() -> None:
    template = ChatTemplate.from_text(families.source("Qwen-Qwen2.5-7B-Instruct"))
    for turns in (2, 3):
        template.render(chat_request(conversation(turns, False)))
    request = chat_request(conversation(100, False))
    times = []
    for _ in range(5):
        start = time.thread_time()
        template.render(request)
        times.append(time.thread_time() - start)
    assert min(times) < 0.02  # measured: 1 ms; llama.cpp takes 50
