"""llama-server's own endpoints over HTTP: the forms that its documentation gives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llama_py import demo_model_path
from tests.adapters import tiny_adapter
from tests.server.leaving import Visitor, until
from tests.server.serving import Server, demo_settings, serving
from tests.slowness import slow_steps

QUESTION = [{"role": "user", "content": "What is 2+2?"}]
#: It goes on until somebody stops it.
ENDLESS = {"prompt": "Once upon a time", "n_predict": 1900, "ignore_eos": True}
INFILL = {"tokenizer.ggml.fim_pre_token_id": 5, "tokenizer.ggml.fim_suf_token_id": 6}

#: What the documentation of ``/completion`` names in a reply that is not streamed.
COMPLETION = {
    *("content", "tokens", "stop", "generation_settings", "model", "stop_type", "stopping_word"),
    *("timings", "tokens_cached", "tokens_evaluated", "tokens_predicted", "truncated"),
    *("index", "id_slot", "has_new_line"),
}
PARTIAL = {
    *("index", "content", "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"),
}
PROPS = {
    *("default_generation_settings", "total_slots", "model_path", "chat_template"),
    *("chat_template_caps", "modalities", "build_info", "is_sleeping", "bos_token", "eos_token"),
}
ODD_TEXTS = [
    "",
    " ",
    "hello world",
    "\0",
    "\r\n\t\n",
    "naïve café",
    "🙂👨‍👩‍👧‍👦",
    "a\u0301\u0327",
    "\u202eright to left\u202c",
    "漢字かな交じり文",
    "<|im_end|><|im_start|>user",
    "  many   spaces    ",
    "x" * 3000,
    "\ufeff\ufffd\U0010ffff",
]

#: The code of an error that names a field which is not there.
MISSING = "missing_required_parameter"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings(n_seq_max=2, kv_overrides={**INFILL, **_MIDDLE})) as server:
        yield server


_MIDDLE = {"tokenizer.ggml.fim_mid_token_id": 7}


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as http:
        yield http


@pytest.fixture(scope="module")
def prompt(http: httpx.Client) -> str:
    answer = http.post("/apply-template", json={"messages": QUESTION})
    prompt: str = answer.json()["prompt"]
    return prompt


def post(http: httpx.Client, path: str, body: Any, status: int = 200) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def streamed(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with http.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines]


def idle(server: Server) -> bool:
    (model,) = server.service.models.models
    return not any(each.busy for each in model.llama.runtime.loaded.cache.live)


# ---- /completion -----------------------------------------------------------------------------


def test_a_completion(http: httpx.Client, prompt: str) -> None:
    body = {"prompt": prompt, "n_predict": 20, "temperature": 0, "cache_prompt": False}
    reply = post(http, "/completion?beta=true", body)
    assert reply.keys() == COMPLETION
    assert reply["content"] == "2 + 2 = 4."
    assert (reply["stop"], reply["stop_type"], reply["tokens"]) == (True, "eos", [])
    assert reply["timings"]["cache_n"] == 0
    assert reply["timings"]["prompt_n"] == reply["tokens_evaluated"]
    assert reply["model"] == "demo"
    again = post(http, "/completion", {**body, "cache_prompt": True})
    assert again["content"] == reply["content"]
    assert again["timings"]["prompt_n"] == 1
    assert post(http, "/completion", body)["timings"]["cache_n"] == 0


@pytest.mark.parametrize("more", [{}, {"n_probs": 3}, {"stop": ["= "]}, {"n_predict": 3}])
def test_a_stream_is_the_same_reply(http: httpx.Client, prompt: str, more: dict[str, Any]) -> None:
    body = {"prompt": prompt, "n_predict": 20, "temperature": 0, "return_tokens": True, **more}
    whole = post(http, "/completion", body)
    *parts, last = streamed(http, "/completion", body)
    assert all(part.keys() - {"completion_probabilities"} == PARTIAL for part in parts)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    probs = [each for part in parts for each in part.get("completion_probabilities", ())]
    assert [each["id"] for each in probs] == [
        each["id"] for each in whole.get("completion_probabilities", ())
    ]
    for name in ("stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated"):
        assert last[name] == whole[name]
    assert last.keys() == COMPLETION


def test_progress_of_a_prompt(http: httpx.Client) -> None:
    body = {"prompt": "word " * 700, "n_predict": 1, "return_progress": True, "cache_prompt": False}
    first, second, *_ = streamed(http, "/completion", {**body, "timings_per_token": True})
    told = first["prompt_progress"]
    assert told.keys() == {"total", "cache", "processed", "time_ms"}
    assert told["processed"] == told["cache"] == 0 < told["total"]
    assert first["timings"]["prompt_n"] == first["timings"]["prompt_ms"] == 0
    assert 0 < second["prompt_progress"]["processed"] <= told["total"]
    assert second["timings"]["prompt_n"] == second["prompt_progress"]["processed"]
    assert second["timings"]["prompt_ms"] > 0


def test_rates_do_not_count_the_first_token(http: httpx.Client) -> None:
    """It comes of the prompt's last step, so that one token takes no time at all."""
    timings = post(http, "/completion", {"prompt": "word", "n_predict": 1})["timings"]
    assert (timings["predicted_n"], timings["predicted_per_second"]) == (1, 0)
    assert timings["predicted_per_token_ms"] == 0
    body = {"prompt": "word", "n_predict": 9, "ignore_eos": True}
    timings = post(http, "/completion", body)["timings"]
    assert timings["predicted_per_second"] == pytest.approx(8e3 / timings["predicted_ms"])


def test_tokens_and_texts_as_prompts(http: httpx.Client, prompt: str) -> None:
    tokens = post(http, "/tokenize", {"content": prompt})["tokens"]
    bodies = [{"prompt": tokens}, {"prompt": [*tokens[:3], *_pieces(http, tokens[3:])]}]
    for body in bodies:
        reply = post(http, "/completion", {**body, "n_predict": 20, "temperature": 0})
        assert reply["content"] == "2 + 2 = 4."
    several = post(http, "/completion", {"prompt": [prompt, "x"], "n_predict": 1})
    assert [each["index"] for each in several] == [0, 1]


def _pieces(http: httpx.Client, tokens: list[int]) -> list[str]:
    return [post(http, "/detokenize", {"tokens": [token]})["content"] for token in tokens]


def test_a_reply_that_has_to_be_json(http: httpx.Client, prompt: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    reply = post(http, "/completion", {"prompt": prompt, "json_schema": schema, "n_predict": 60})
    assert reply["stop_type"] == "limit" or "a" in json.loads(reply["content"])


def test_only_the_fields_that_were_chosen(http: httpx.Client, prompt: str) -> None:
    fields = ["content", "timings/prompt_n", "nothing"]
    reply = post(http, "/completion", {"prompt": prompt, "response_fields": fields})
    assert reply.keys() == {"content", "timings/prompt_n"}


#: (body, status, code, param)
REFUSED: list[tuple[Any, int, str, str | None]] = [
    ({}, 400, MISSING, "prompt"),
    ({"prompt": None}, 400, MISSING, "prompt"),
    ({"prompt": 5}, 400, "invalid_type", "prompt"),
    ({"prompt": "x", "n_probs": 10**9}, 400, "invalid_value", "n_probs"),
    ({"prompt": "x", "n_predict": "x"}, 400, "invalid_type", "n_predict"),
    ({"prompt": "x", "grammar": "no grammar"}, 400, "invalid_value", "grammar"),
    ({"prompt": "x", "json_schema": {"type": "objekt"}}, 400, "invalid_value", "json_schema"),
    ({"prompt": "x", "session_id": 5}, 400, "invalid_type", "session_id"),
    ({"prompt": "x", "id_slot": "a"}, 400, "invalid_type", "id_slot"),
    ({"prompt": "x", "lora": [{"id": 0, "scale": 1}]}, 501, "not_implemented", "lora"),
    ({"prompt": "word " * 5000}, 413, "context_length_exceeded", None),
    ([1, 2], 400, "invalid_json", None),
]


@pytest.mark.parametrize(("body", "status", "code", "param"), REFUSED, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_in_openais_form(
    http: httpx.Client, body: Any, status: int, code: str, param: str | None, stream: bool
) -> None:
    if isinstance(body, dict):
        body = {**body, "stream": stream}
    error = post(http, "/completion", body, status)["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves(server: Server, stream: bool) -> None:
    (model,) = server.service.models.models
    before = model.llama.metrics["cancelled"]
    visitor = Visitor(server, "/completion", {**ENDLESS, "stream": stream})
    until(lambda: len(visitor.record.generated) > 3, "it generates")
    visitor.leave()
    visitor.wait_for_the_end()
    assert visitor.record.reason == "cancelled"
    assert model.llama.metrics["cancelled"] == before + 1
    until(lambda: idle(server), "the sequence is free")


# ---- /infill ---------------------------------------------------------------------------------


def test_infill(http: httpx.Client) -> None:
    body = {
        "input_prefix": "def add(a, b):\n    return ",
        "input_suffix": "\n\nprint(add(1, 2))\n",
        "input_extra": [{"filename": "a.py", "text": "x = 1"}],
        "n_predict": 4,
    }
    reply = post(http, "/infill", body)
    assert reply.keys() == COMPLETION
    assert reply["tokens_evaluated"] > 20
    parts = streamed(http, "/infill", body)
    assert parts[-1]["stop"]
    error = post(http, "/infill", {"input_prefix": "a"}, 400)["error"]
    assert error["param"] == "input_suffix"


# ---- tokens and prompts ----------------------------------------------------------------------


@pytest.mark.parametrize("text", ODD_TEXTS)
@pytest.mark.parametrize("parse_special", [False, True])
def test_there_and_back(http: httpx.Client, text: str, parse_special: bool) -> None:
    body = {"content": text, "parse_special": parse_special}
    tokens = post(http, "/tokenize", body)["tokens"]
    assert all(isinstance(token, int) for token in tokens)
    assert post(http, "/detokenize", {"tokens": tokens})["content"] == text
    pieces = post(http, "/tokenize", {**body, "with_pieces": True})["tokens"]
    assert [each["id"] for each in pieces] == tokens
    parts = [each["piece"] for each in pieces]
    data = b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in parts)
    assert data.decode() == text


def test_half_a_character(http: httpx.Client) -> None:
    answer = http.post(
        "/tokenize",
        content=b'{"content": "\\ud83d"}',
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 200
    tokens = answer.json()["tokens"]
    assert post(http, "/detokenize", {"tokens": tokens})["content"]


def test_special_tokens(http: httpx.Client) -> None:
    plain = post(http, "/tokenize", {"content": "<|im_end|>", "parse_special": False})["tokens"]
    (token,) = post(http, "/tokenize", {"content": "<|im_end|>"})["tokens"]
    assert len(plain) > 1
    assert post(http, "/detokenize", {"tokens": [token]})["content"] == "<|im_end|>"


#: (path, body, code, param)
BAD_TOKENS: list[tuple[str, Any, str, str]] = [
    ("/tokenize", {}, MISSING, "content"),
    ("/tokenize", {"content": None}, MISSING, "content"),
    ("/tokenize", {"content": 5}, "invalid_type", "content"),
    ("/tokenize", {"content": [10**9]}, "invalid_value", "content[0]"),
    ("/tokenize", {"content": "x", "add_special": "yes"}, "invalid_type", "add_special"),
    ("/detokenize", {}, MISSING, "tokens"),
    ("/detokenize", {"tokens": "x"}, "invalid_type", "tokens"),
    ("/detokenize", {"tokens": [-1]}, "invalid_value", "tokens[0]"),
    ("/detokenize", {"tokens": [1.5]}, "invalid_type", "tokens[0]"),
    ("/detokenize", {"tokens": [1, None]}, "invalid_type", "tokens[1]"),
    ("/detokenize", {"tokens": [2**60]}, "invalid_value", "tokens[0]"),
    ("/extras/tokenize", {}, MISSING, "input"),
    ("/extras/tokenize", {"input": 5}, "invalid_type", "input"),
    ("/extras/tokenize/count", {"input": ["x"]}, "invalid_type", "input"),
    ("/extras/detokenize", {"tokens": [[]]}, "invalid_type", "tokens[0]"),
    ("/apply-template", {}, MISSING, "messages"),
    ("/apply-template", {"messages": "x"}, "invalid_type", "messages"),
    ("/apply-template", {"messages": [{"role": "user"}]}, MISSING, "messages[0].content"),
    ("/v1/chat/completions/control", {}, MISSING, "action"),
    ("/v1/chat/completions/control", {"action": "cancel"}, MISSING, "id"),
]


@pytest.mark.parametrize(("path", "body", "code", "param"), BAD_TOKENS)
def test_what_is_no_text_and_no_token(
    http: httpx.Client, path: str, body: Any, code: str, param: str
) -> None:
    error = post(http, path, body, 400)["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["code"], error["param"]) == (code, param)


def test_llama_cpp_pythons_names(http: httpx.Client, server: Server) -> None:
    (model,) = server.service.models.models
    body = {"model": None, "input": "hello <|im_end|>"}
    tokens = model.llama.tokenize("hello <|im_end|>", special=True)
    assert post(http, "/extras/tokenize", body) == {"tokens": tokens}
    assert post(http, "/extras/tokenize/count", body) == {"count": len(tokens)}
    assert post(http, "/extras/detokenize", {"tokens": tokens}) == {"text": "hello "}


def test_a_template_and_its_prompt(http: httpx.Client, prompt: str) -> None:
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 20}
    chat = post(http, "/v1/chat/completions", body)
    reply = post(http, "/completion", {"prompt": prompt, "temperature": 0, "n_predict": 20})
    assert reply["content"] == chat["choices"][0]["message"]["content"]
    assert reply["tokens_evaluated"] == chat["usage"]["prompt_tokens"]


# ---- the server ------------------------------------------------------------------------------


def test_props(http: httpx.Client) -> None:
    props = http.get("/props").json()
    assert props.keys() >= PROPS
    assert props["model_path"] == Path(demo_model_path()).name
    assert str(Path(demo_model_path()).parent) not in json.dumps(props)
    assert re.match(r"b[1-9]\d+-\w", props["build_info"]), "as llama-server's begins"
    assert (props["total_slots"], props["model_ftype"]) == (2, "Q8_0")
    assert props["default_generation_settings"]["params"]["temperature"] == pytest.approx(0.8)
    assert props["chat_template_caps"]
    assert post(http, "/props", {}, 501)["error"]["code"] == "not_implemented"


def test_a_template_of_llama_cpp() -> None:
    with serving(demo_settings(chat_template="llama3")) as server, server.http() as http:
        props = http.get("/props").json()
        assert (props["chat_template"], props["chat_template_caps"]) == ("llama3", {})
        messages = [{"role": "user", "content": "Hello"}]
        prompt = post(http, "/apply-template", {"messages": messages})["prompt"]
        header = "<|start_header_id|>{}<|end_header_id|>\n\n"
        assert prompt == f"{header.format('user')}Hello<|eot_id|>{header.format('assistant')}"
        tools = [{"type": "function", "function": {"name": "f"}}]
        refused = post(http, "/v1/chat/completions", {"messages": messages, "tools": tools}, 400)
        assert "no form for tools" in refused["error"]["message"]


def test_slots(http: httpx.Client, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(monkeypatch)
    until(lambda: idle(server), "everything is idle")
    slots = http.get("/slots?fail_on_no_slot=1").json()
    assert [slot["id"] for slot in slots] == [0, 1]
    assert all("prompt" not in slot and not slot["is_processing"] for slot in slots)
    visitors = [Visitor(server, "/completion", {**ENDLESS, "stream": True}) for _ in slots]
    until(lambda: all(each.record.generated for each in visitors), "they generate")
    answer = http.get("/slots?fail_on_no_slot=1")
    busy = http.get("/slots").json()
    for visitor in visitors:
        visitor.leave()
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "unavailable_error"
    assert int(answer.headers["retry-after"]) >= 1
    assert all(slot["is_processing"] for slot in busy)
    assert all(slot["next_token"][0]["n_decoded"] > 0 for slot in busy)
    assert all(slot["n_past"] > 0 for slot in busy)
    assert not any(slot["speculative"] for slot in (*slots, *busy))


def test_slots_say_whether_tokens_are_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(monkeypatch)
    settings = demo_settings(n_seq_max=1, speculative="lookup")
    with serving(settings) as server, server.http() as http:
        assert http.get("/slots").json()[0]["speculative"]
        visitor = Visitor(server, "/completion", {**ENDLESS, "stream": True})
        until(lambda: visitor.record.generated, "it generates")
        slot = http.get("/slots").json()[0]
        visitor.leave()
        assert (slot["is_processing"], slot["speculative"]) == (True, True)


def test_without_a_directory_slots_are_not_saved(http: httpx.Client) -> None:
    error = post(http, "/slots/0?action=save", {"filename": "a"}, 501)["error"]
    assert "--slot-dir" in error["message"]


def test_what_is_shown_only_where_it_is_allowed(tmp_path: Path) -> None:
    adapter = tiny_adapter(demo_model_path(), tmp_path / "adapter.gguf")
    settings = demo_settings({"expose_prompts": True}, lora_path=str(adapter), lora_scale=0.25)
    with serving(settings) as server, server.http() as http:
        assert http.get("/props").json()["model_path"] == demo_model_path()
        reply = post(http, "/completion", {"prompt": "Hello there", "n_predict": 1})
        assert reply["prompt"] == "Hello there"
        assert http.get("/slots").json()[0]["prompt"].startswith("Hello there")
        adapters = http.get("/lora-adapters").json()
        assert adapters == [{"id": 0, "path": "adapter.gguf", "scale": 0.25}]
        answer = http.post("/lora-adapters", json=[{"id": 0, "scale": 1.0}])
        assert answer.status_code == 501
