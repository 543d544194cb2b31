"""Values of any kind, put anywhere into a request: an answer, or an error that can be understood.

Nothing but the package's own errors may come out, their messages can be printed and sent, and none
of them is a complaint of the JSON parser between here and llama.cpp about a text that the caller
never saw.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_py import ChatSession, Llama, demo_model_path
from llama_py.errors import LlamaError, ParameterError, ParameterTypeError
from tests.models import tiny_model


class Unspeakable:
    """What cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


ODD: list[Any] = [
    *(None, True, False, 3, -1, 10**30, 10**5000, 1.5, float("nan"), float("inf")),
    *("", "x", "x" * 1000, "\0", "\ud800", "\ud83d\ude00", "auto", b"x"),
    *([], {}, (), set(), [None], ["a"], [b"a"], [["a"]], {"a": 1}, {1: 2}, range(3)),
    *({"type": "text"}, {"type": "function"}, {"function": 3}, {"a": Unspeakable()}),
    *(Unspeakable(), object(), nested(400), nested(50_000)),
]

CALL = {"name": "f", "arguments": {"a": [1, {"b": "c"}]}}
REQUEST: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "bob"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "r",
            "tool_calls": [{"id": "abcdefghi", "type": "function", "function": CALL}],
        },
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "21"},
        {"role": "user", "content": "x"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d"}}],
    "tool_choice": "auto",
    "chat_template_kwargs": {"x": {"y": 1}},
    "reasoning_effort": "low",
    "reasoning_format": "auto",
    "reasoning_budget": 10,
    "response_format": {"type": "text"},
    "stop": ["a"],
    "logit_bias": {"5": 1.0},
    "stream_options": {"include_usage": True},
    **dict.fromkeys(("continue_final_message", "enable_thinking", "parallel_tool_calls"), False),
    **dict.fromkeys(("temperature", "seed", "n", "max_tokens", "timeout", "priority", "top_k"), 1),
    **dict.fromkeys(("grammar", "samplers", "stop_token_ids", "logprobs", "top_logprobs"), None),
    **dict.fromkeys(("model", "user", "session_id", "service_tier", "store", "metadata"), "m"),
}

Place = tuple[Any, ...]


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every place in a request."""
    if place:
        yield place
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield from places(value[key], (*place, key))


def put(value: Any, place: Place, odd: Any) -> Any:
    """A copy with something else in that place."""
    changed = copy.copy(value)
    first, *rest = place
    changed[first] = put(value[first], tuple(rest), odd) if rest else odd
    return changed


def check(call: Callable[[], Any]) -> None:
    try:
        call()
    except LlamaError as error:
        message = str(error)
        message.encode()
        assert "json.exception" not in message
        assert len(message) < 3000


@pytest.fixture(scope="module")
def demo() -> Iterator[Llama]:
    with Llama(demo_model_path(), n_ctx=1024, n_threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def tiny() -> Iterator[Llama]:
    with Llama(str(tiny_model("full")), n_ctx=128, n_threads=1) as llm:
        yield llm


@pytest.mark.parametrize("name", sorted(REQUEST))
def test_odd_values_in_a_chat(demo: Llama, name: str) -> None:
    for place in places({name: REQUEST[name]}):
        for odd in ODD:
            options = put(REQUEST, place, odd)
            options["stream"] = options["stream_options"] is not None
            messages = options.pop("messages")
            check(lambda m=messages, o=options: demo.render_chat(m, **o))  # type: ignore[misc]


def test_odd_values_in_a_completion(tiny: Llama) -> None:
    names = ["suffix", "echo", "logprobs", "best_of", "n", "max_tokens", "grammar", "stop", "model"]
    for name in names:
        for odd in ODD:
            options = {"max_tokens": 1, name: odd}
            check(lambda o=options: tiny.create_completion("ab", **o))  # type: ignore[misc]
    for odd in ODD:
        check(lambda p=odd: tiny.create_completion(p, max_tokens=1))  # type: ignore[misc]
    assert tiny.create_completion([5, 6], max_tokens=1, ignore_eos=True)["choices"]


LOW_LEVEL: dict[str, Callable[[Any, Any], Any]] = {
    "tokenize": lambda llm, odd: llm.tokenize(odd),
    "detokenize": lambda llm, odd: llm.detokenize(odd),
    "eval": lambda llm, odd: (llm.reset(), llm.eval(odd)),
    "generate": lambda llm, odd: next(llm.generate(odd)),
    "sample": lambda llm, odd: (llm.eval([5]), llm.sample(idx=odd)),
    "set_seed": lambda llm, odd: llm.set_seed(odd),
    "set_cache": lambda llm, odd: llm.set_cache(odd),
    "load_state": lambda llm, odd: llm.load_state(odd),
    "snapshot": lambda llm, odd: (llm.eval([5]), llm.snapshot(odd)),
    "restore": lambda llm, odd: llm.restore(odd),
    "drop_snapshot": lambda llm, odd: llm.drop_snapshot(odd),
    "prewarm": lambda llm, odd: llm.prewarm(odd),
    "chat_session": lambda llm, odd: llm.chat_session(odd),
    "send": lambda llm, odd: llm.chat_session(max_tokens=1).send(odd),
    "load": lambda llm, odd: ChatSession.load(llm, odd),
}


@pytest.mark.parametrize("name", LOW_LEVEL)
def test_odd_values_in_other_calls(
    tiny: Llama, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for odd in ODD:
        tiny.reset()
        tiny.set_seed(1)
        check(lambda odd=odd: LOW_LEVEL[name](tiny, odd))  # type: ignore[misc]
    tiny.set_cache(None)
    assert tiny.create_completion([5, 6], max_tokens=1, ignore_eos=True)["choices"]


def test_a_number_is_no_text(tiny: Llama) -> None:
    """``bytes(10**11)`` are a hundred gigabytes of zeros."""
    for wrong in (5, 10**11, [1, 2]):
        with pytest.raises(ParameterTypeError, match="text must be a string or bytes"):
            tiny.tokenize(wrong)  # type: ignore[arg-type]


SHORT: dict[str, Any] = {"max_tokens": 1}


@pytest.mark.parametrize("name", ["temperature", "seed", "max_tokens", "timeout", "n", "min_p"])
def test_an_integer_beyond_all_bounds(tiny: Llama, name: str) -> None:
    with pytest.raises(ParameterError, match=name):
        tiny.create_completion("a", **{**SHORT, name: 10**5000})


@pytest.mark.parametrize(
    "name", ["n_ctx", "seed", "parking_bytes", "checkpoint_bytes", "max_waiting", "rope_freq_base"]
)
def test_a_model_and_integers_beyond_all_bounds(name: str) -> None:
    for wrong in (10**5000, None, Unspeakable()):
        if name == "seed" and wrong is None:
            continue
        options: dict[str, Any] = {"n_ctx": 64, name: wrong}
        with pytest.raises(ParameterError, match=name):
            Llama(str(tiny_model("full")), **options)
