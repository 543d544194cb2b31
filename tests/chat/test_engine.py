"""A request of a known shape gets the answer of llama.cpp's chat code, for every template."""

from __future__ import annotations

import time
from typing import Any

import pytest

from llama_py.chat.messages import ChatRequest
from llama_py.chat.templates.engine import TemplateEngine, _key
from llama_py.chat.templates.inputs import inputs_of
from llama_py.chat.templates.python_jinja import JinjaTemplate
from llama_py.chat.templates.template import ChatTemplate
from llama_py.errors import TemplateError
from llama_py.tenants import Remembered
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


def answered_anew(engine: TemplateEngine, inputs: dict[str, Any]) -> dict[str, Any]:
    """The answer of llama.cpp's chat code, whatever shape is known."""
    known, engine._known = engine._known, Remembered(1)
    try:
        return engine.apply(inputs)
    finally:
        engine._known = known


def is_known(template: ChatTemplate, request: ChatRequest) -> bool:
    key = _key(inputs_of(request))
    return key is not None and bool(template._engine._known.get(key))


@pytest.mark.parametrize("with_tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("name", families.names())
def test_a_known_shape_is_answered_alike(name: str, with_tools: bool) -> None:
    engine = families.load(name)._engine
    for request in requests(with_tools):
        inputs = inputs_of(request)
        try:
            expected = answered_anew(engine, inputs)
        except TemplateError:
            with pytest.raises(TemplateError):
                engine.apply(inputs)
            continue
        for _ in range(2):
            assert engine.apply(inputs) == expected


def test_shapes_of_most_templates_are_known() -> None:
    known = 0
    for name in families.names():
        template = families.load(name)
        for request in requests(False):
            template.render(request)
        known += is_known(template, requests(False)[-1])
    assert known >= 0.85 * len(families.names())


def test_a_known_shape_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template = families.load("Qwen-Qwen2.5-7B-Instruct")
    for request in requests(False):
        template.render(request)
    users = [{"role": "user", "content": "x"}, *conversation(3, False)[1:]]
    template.render(chat_request(users))  # asks what the template does with users in a row
    rendered: list[Any] = []
    render = JinjaTemplate.render

    def counted(self: JinjaTemplate, *args: Any) -> str:
        rendered.append(args)
        return render(self, *args)

    monkeypatch.setattr(JinjaTemplate, "render", counted)
    template.render(requests(False)[-1])
    assert len(rendered) == 1
    template.render(chat_request(users))
    assert len(rendered) == 2


def test_a_loop_that_a_word_starts_is_refused_cold_and_warm() -> None:
    loop = "{%- for a in range(99999) -%}" * 2 + "{%- endfor -%}" * 2
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        f"{{%- if 'boom' in m['content'] -%}}{loop}{{%- endif -%}}"
        "{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    said = []
    for words in (("hello boom",), ("hello", "hello", "hello boom")):
        template = ChatTemplate.from_text(source)
        for text in words[:-1]:
            template.render(chat_request([{"role": "user", "content": text}]))
        with pytest.raises(TemplateError) as caught:
            template.render(chat_request([{"role": "user", "content": words[-1]}]))
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "takes more than" in said[0]


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
        assert not is_known(template, request)


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
            template.render(request).prompt
            == answered_anew(template._engine, inputs_of(request))["prompt"]
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
    assert len(template._engine._known) == 64


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
