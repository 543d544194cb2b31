"""Conversations through ``llama_cpp.Llama``, its chat formats, handlers and caches."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_py.compat.llama_cpp import (
    LlamaDiskCache,
    LlamaRAMCache,
    llama_chat_format,
    llama_grammar,
)

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CHOICE = {"type": "function", "function": {"name": "get_weather"}}


def test_a_chat_has_the_members_of_llama_cpp_python(llm: Any) -> None:
    found = llm.create_chat_completion(QUESTION, temperature=0)
    assert set(found) == {"id", "object", "created", "model", "choices", "usage"}
    assert found["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "2 + 3 = 5."},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert llm.chat_format == "chat_template.default"


def test_streams_say_the_same(llm: Any) -> None:
    chunks = list(llm.create_chat_completion(QUESTION, temperature=0, stream=True))
    deltas = [each["choices"][0]["delta"] for each in chunks]
    assert deltas[0] == {"role": "assistant"}
    assert "".join(each.get("content", "") for each in deltas) == "2 + 3 = 5."
    assert (deltas[-1], chunks[-1]["choices"][0]["finish_reason"]) == ({}, "stop")


def test_calls_of_tools_have_both_forms(llm: Any) -> None:
    found = llm.create_chat_completion(WEATHER, tools=[TOOL], tool_choice=CHOICE, temperature=0)
    message = found["choices"][0]["message"]
    assert found["choices"][0]["finish_reason"] == "tool_calls"
    assert message["function_call"] == message["tool_calls"][0]["function"]
    assert message["function_call"]["name"] == "get_weather"
    old = llm.create_chat_completion(
        WEATHER, [TOOL["function"]], {"name": "get_weather"}, temperature=0
    )["choices"][0]
    assert old["finish_reason"] == "tool_calls"
    assert old["message"]["function_call"] == old["message"]["tool_calls"][0]["function"]
    assert old["message"]["tool_calls"][0]["id"].startswith("call__0_get_weather_")


@pytest.mark.parametrize(("choice", "calls"), [("get_weather", True), ("unknown", False)])
def test_a_choice_may_be_the_name_of_a_tool(llm: Any, choice: str, calls: bool) -> None:
    found = llm.create_chat_completion(QUESTION, tools=[TOOL], tool_choice=choice, temperature=0)
    assert ("tool_calls" in found["choices"][0]["message"]) is calls


@pytest.mark.parametrize("legacy", [False, True])
def test_each_chunk_of_a_call_says_which_one_it_is(llm: Any, legacy: bool) -> None:
    given: dict[str, Any] = {"tools": [TOOL], "tool_choice": CHOICE}
    if legacy:
        given = {"functions": [TOOL["function"]], "function_call": {"name": "get_weather"}}
    chunks = list(llm.create_chat_completion(WEATHER, temperature=0, stream=True, **given))
    choices = [each["choices"][0] for each in chunks]
    calls = [each["delta"]["tool_calls"][0] for each in choices if "tool_calls" in each["delta"]]
    assert len(calls) > 1
    assert len({call["id"] for call in calls}) == 1
    assert {call["function"]["name"] for call in calls} == {"get_weather"}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Paris"}'
    assert all(
        each["delta"]["function_call"] == each["delta"]["tool_calls"][0]["function"]
        for each in choices
        if "tool_calls" in each["delta"]
    )
    assert choices[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "given",
    [
        {"logprobs": 2},
        {"top_logprobs": 3},
        {"logprobs": False, "top_logprobs": 3},
        {"tools": [], "tool_choice": "required"},
        {"tool_choice": "auto"},
        {"functions": [], "function_call": "none"},
        {"stop": [""]},
        {"max_tokens": 4.0},
        {"max_tokens": None, "stop": "="},
        {"top_p": 1.5, "frequency_penalty": 3, "repeat_penalty": 0},
        {"response_format": {"type": "text"}},
    ],
    ids=str,
)
def test_odd_values_of_chats_are_taken(llm: Any, given: dict[str, Any]) -> None:
    found = llm.create_chat_completion(QUESTION, temperature=0, **{"max_tokens": 4, **given})
    assert found["usage"]["completion_tokens"] >= 1


def test_a_message_may_have_no_content(llm: Any) -> None:
    found = llm.create_chat_completion(
        [{"role": "system", "content": None}, *QUESTION], temperature=0, max_tokens=2
    )
    assert found["usage"]["completion_tokens"] == 2


def test_schemas_and_grammars(llm: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    grammar = llama_grammar.LlamaGrammar.from_json_schema(json.dumps(schema))
    for given in (
        {"response_format": {"type": "json_object", "schema": schema}},
        {"grammar": grammar},
    ):
        found = llm.create_chat_completion(QUESTION, temperature=0, **given)
        assert set(json.loads(found["choices"][0]["message"]["content"])) == {"a"}


@pytest.mark.parametrize("engine", ["llguidance", "gbnf"])
@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_a_reply_has_no_other_properties_with_either_engine(
    llm: Any, engine: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llama_py.chat import constraints

    if engine == "llguidance":
        pytest.importorskip("llguidance")
    monkeypatch.setattr(constraints, "available", lambda: engine == "llguidance")
    # The only property that is allowed is not the one for which the model would go.
    schema = {"type": "object", "properties": {"zz": {"const": 1}}, "$comment": engine}
    wanted: Any = (
        {"schema": schema} if kind == "json_object" else {"json_schema": {"schema": schema}}
    )
    wanted["type"] = kind
    biased = dict.fromkeys(llm.tokenize(b'{"name":', add_bos=False), 8.0)
    found = llm.create_chat_completion(
        QUESTION, temperature=0, max_tokens=40, response_format=wanted, logit_bias=biased
    )["choices"][0]
    assert found["finish_reason"] == "stop"
    assert set(json.loads(found["message"]["content"])) <= {"zz"}


def test_openai_types(llm: Any) -> None:
    pytest.importorskip("openai")
    found = llm.create_chat_completion_openai_v1(QUESTION, temperature=0)
    assert found.choices[0].message.content == "2 + 3 = 5."
    chunks = list(llm.create_chat_completion_openai_v1(QUESTION, temperature=0, stream=True))
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == "2 + 3 = 5."


# ---- formats and handlers --------------------------------------------------------------------


def test_handlers_of_ones_own_get_every_argument(llm: Any) -> None:
    seen: dict[str, Any] = {}

    def handler(*, llama: Any, messages: Any, tools: Any, temperature: Any, **more: Any) -> Any:
        seen.update(more, llama=llama, tools=tools)
        return {"mine": messages}

    llm.chat_handler = handler
    assert llm.create_chat_completion(QUESTION) == {"mine": QUESTION}
    assert seen["llama"] is llm
    assert {"tool_choice", "top_k", "repeat_penalty", "logit_bias", "top_logprobs"} <= set(seen)


def test_handlers_take_variables_of_the_template(llm: Any) -> None:
    handler = llm._chat_handlers.get(llm.chat_format)
    found = handler(llama=llm, messages=QUESTION, enable_thinking=False, mood="good", temperature=0)
    assert found["choices"][0]["message"]["content"] == "2 + 3 = 5."


def test_a_registered_format_makes_the_prompt(llm: Any) -> None:
    name = "test-format"
    registry = llama_chat_format.LlamaChatCompletionHandlerRegistry()

    @llama_chat_format.register_chat_format(name)
    def make(messages: Any, **kwargs: Any) -> Any:
        text = "".join(
            f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages
        )
        return llama_chat_format.ChatFormatterResponse(
            text + "<|im_start|>assistant\n", stop="<|im_end|>"
        )

    try:
        llm.chat_format = name
        found = llm.create_chat_completion(QUESTION, temperature=0)
        assert found["choices"][0]["message"]["content"] == "2 + 3 = 5."
        chunks = list(llm.create_chat_completion(QUESTION, temperature=0, stream=True))
        text = "".join(each["choices"][0]["delta"].get("content", "") for each in chunks)
        assert text == "2 + 3 = 5."
        called = llm.create_chat_completion(
            WEATHER, tools=[TOOL], tool_choice=CHOICE, temperature=0
        )["choices"][0]
        assert called["finish_reason"] == "tool_calls"
        assert called["message"]["function_call"]["arguments"].startswith("{")
        with pytest.raises(ValueError, match="already registered"):
            llama_chat_format.register_chat_format(name)(make)
    finally:
        registry.unregister_chat_handler(name)
    with pytest.raises(llama_chat_format.LlamaChatCompletionHandlerNotFoundException):
        llm.create_chat_completion(QUESTION)


def test_jinja_formatters_become_handlers(llm: Any) -> None:
    formatter = llama_chat_format.Jinja2ChatFormatter(
        llm.metadata["tokenizer.chat_template"],
        eos_token="<|im_end|>",
        bos_token="",
        stop_token_ids=[llm.token_eos()],
    )
    found = formatter.to_chat_handler()(llama=llm, messages=QUESTION, temperature=0)
    assert found["choices"][0]["message"]["content"] == "2 + 3 = 5."
    configured = llama_chat_format.hf_tokenizer_config_to_chat_completion_handler(
        {
            "chat_template": llm.metadata["tokenizer.chat_template"],
            "bos_token": "",
            "eos_token": {"content": "<|im_end|>"},
        }
    )
    again = configured(llama=llm, messages=QUESTION, temperature=0)
    assert again["choices"][0]["message"] == found["choices"][0]["message"]


def test_formats_by_name(llm: Any) -> None:
    llama2 = llama_chat_format.format_llama2(messages=QUESTION)
    assert llama2.prompt.endswith("[INST] What is 2 + 3? [/INST]")
    chatml = llama_chat_format.format_chatml(QUESTION)
    assert chatml.prompt.endswith("<|im_start|>assistant\n")
    llm.chat_format = "chatml"
    found = llm.create_chat_completion(QUESTION, temperature=0)
    assert found["choices"][0]["message"]["content"] == "2 + 3 = 5."
    assert llama_chat_format.chatml_function_calling(llm, QUESTION, temperature=0, max_tokens=2)
    template = llama_chat_format.CHATML_CHAT_TEMPLATE
    guess = llama_chat_format.guess_chat_format_from_gguf_metadata
    assert guess({"tokenizer.chat_template": template}) == "chatml"
    assert guess({"tokenizer.chat_template": "x"}) is None


def test_addresses_of_pictures() -> None:
    with pytest.raises(ValueError, match=r"Clip model path does not exist: mmproj\.gguf"):
        llama_chat_format.Llava15ChatHandler("mmproj.gguf")
    parts = [{"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "text", "text": "x"}]
    urls = llama_chat_format.Llava15ChatHandler.get_image_urls([{"role": "user", "content": parts}])
    assert urls == ["a.png"]
    split = llama_chat_format.Llava15ChatHandler.split_text_on_image_urls("xa.pngy", urls)
    assert split == [("text", "x"), ("image_url", "a.png"), ("text", "y")]


@pytest.mark.parametrize("name", [name for name in llama_grammar.__all__ if name.endswith("_GBNF")])
def test_grammars_that_come_along_are_grammars(llm: Any, name: str) -> None:
    grammar = llama_grammar.LlamaGrammar.from_string(getattr(llama_grammar, name))
    assert llm("A", max_tokens=8, temperature=0, grammar=grammar)["choices"][0]["text"]


# ---- caches ----------------------------------------------------------------------------------


def conversations(llm: Any) -> Iterator[str]:
    for number in range(12):
        yield f"This is the beginning of the story number {number}, which is a long one, "


@pytest.mark.parametrize("kind", [LlamaRAMCache, LlamaDiskCache])
def test_caches_are_used_by_the_engine_and_are_mappings(
    llm: Any, kind: Any, tmp_path: Path
) -> None:
    cache = kind(str(tmp_path)) if kind is LlamaDiskCache else kind()
    assert (list(range(3)) in cache) is False
    llm.set_cache(cache)
    assert llm.cache is cache
    prompts = list(conversations(llm))
    for prompt in itertools.chain(prompts, prompts):
        again = llm(prompt, max_tokens=1, temperature=0)
    assert again.cache["reused"] > 5
    tokens = llm.tokenize(prompts[0].encode())
    llm.reset()
    llm.eval(tokens)
    cache[tokens] = llm.save_state()
    assert cache.cache_size > 0
    assert tokens in cache
    assert cache[[*tokens, 5]].n_tokens == len(tokens)
    with pytest.raises(KeyError):
        cache[[1535]]


def test_mappings_of_ones_own_are_asked_and_told(llm: Any) -> None:
    calls: list[str] = []

    class Mapping:
        kept: Any = None

        def __getitem__(self, key: Any) -> Any:
            calls.append(f"get {len(key)}")
            if self.kept is None:
                raise KeyError
            return self.kept

        def __setitem__(self, key: Any, value: Any) -> None:
            calls.append(f"set {len(key)}")
            self.kept = value

    mapping = Mapping()
    llm.set_cache(mapping)
    first = llm("The sky is", max_tokens=4, temperature=0)
    again = "".join(
        each["choices"][0]["text"]
        for each in llm("The sky is", max_tokens=4, temperature=0, stream=True)
    )
    assert again == first["choices"][0]["text"]
    count = first["usage"]["total_tokens"]
    assert calls == [f"get {count - 4}", f"set {count}"] * 2
    assert mapping.kept.n_tokens == count - 1
