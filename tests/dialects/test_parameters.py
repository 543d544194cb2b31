"""Arguments of the two calls: what is taken, and what is refused before anything is evaluated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from llama_py.chat.constraints import LlamaGrammar
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.openai.bodies import read_chat
from llama_py.dialects.openai.chat import parse_chat
from llama_py.dialects.openai.completions import parse_completion
from llama_py.dialects.processors import LogitsProcessorList, StoppingCriteriaList
from llama_py.errors import (
    LlamaError,
    ParameterError,
    ParameterTypeError,
    UnknownParameterError,
)
from llama_py.options import CHAT, COMPLETION
from llama_py.params import RANDOM_SEED, GrammarSpec
from tests.dialects.playing import Context

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "go", "parameters": {}}}
FUNCTION = {"name": "go", "parameters": {"type": "object", "properties": {}}}

#: (arguments, a part of the message) of both calls
BAD_ANYWHERE: list[tuple[dict[str, Any], str]] = [
    ({"temperature": "hot"}, "temperature must be a number"),
    ({"temperature": math.nan}, "temperature"),
    ({"temperature": True}, "temperature must be a number"),
    ({"top_p": 1.5}, "top_p=1.5 is out of range: allowed is 0.0 to 1.0"),
    ({"top_p": -0.1}, "allowed is 0.0 to 1.0"),
    ({"min_p": 2}, "min_p=2 is out of range"),
    ({"typical_p": 2}, "typical_p"),
    ({"top_k": 1.5}, "top_k must be an integer"),
    ({"repeat_penalty": 0}, "repeat_penalty"),
    ({"frequency_penalty": 3}, "allowed is -2.0 to 2.0"),
    ({"presence_penalty": -3}, "allowed is -2.0 to 2.0"),
    ({"penalty_last_n": -2}, "penalty_last_n"),
    ({"mirostat_mode": 3}, "mirostat_mode=3 is out of range: allowed is 0 to 2"),
    ({"mirostat_tau": -1}, "mirostat_tau"),
    ({"mirostat_eta": -1}, "mirostat_eta"),
    ({"xtc_probability": 2}, "xtc_probability"),
    ({"dry_multiplier": -1}, "dry_multiplier"),
    ({"dry_sequence_breakers": [1]}, "dry_sequence_breakers"),
    ({"dry_sequence_breakers": ["\ud83d"]}, "dry_sequence_breakers"),
    ({"adaptive_target": 2}, "adaptive_target"),
    ({"dynatemp_range": -1}, "dynatemp_range"),
    ({"samplers": ["top_q"]}, "'top_q' is not one of"),
    ({"samplers": 3}, "samplers"),
    ({"seed": 1.5}, "seed must be an integer"),
    ({"seed": 2**64}, "seed"),
    ({"tfs_z": "x"}, "tfs_z"),
    ({"max_tokens": "many"}, "max_tokens must be an integer"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens=9 contradicts max_tokens=8"),
    ({"stop": ""}, "the empty string would end every reply"),
    ({"stop": ["a", 1]}, "stop"),
    ({"stop": 5}, "stop must be a string or a list of strings"),
    ({"stop": ["a"] * 300}, "at most 256"),
    ({"stop": ["a", "b" * 4097]}, "4097 characters; at most 4096"),
    ({"stop_token_ids": [10**9]}, "stop_token_ids"),
    ({"stop_token_ids": 3}, "stop_token_ids"),
    ({"logit_bias": [1]}, "logit_bias must be a dictionary"),
    ({"logit_bias": {"x": 1}}, "'x' is not a token id"),
    ({"logit_bias": {10**9: 1}}, "logit_bias: token"),
    ({"logit_bias": {1: "x"}}, "logit_bias[1]"),
    ({"logit_bias": {1: math.inf}}, "logit_bias[1]"),
    ({"logits_processor": 3}, "logits_processor must be a function"),
    ({"logits_processor": [3]}, "logits_processor"),
    ({"stopping_criteria": "x"}, "stopping_criteria must be a function"),
    ({"grammar": 3}, "grammar must be a LlamaGrammar or GBNF text"),
    ({"grammar": " "}, "the grammar has no rule"),
    ({"ignore_eos": "yes"}, "ignore_eos must be True or False"),
    ({"timeout": -1}, "timeout"),
    ({"timeout": "soon"}, "timeout"),
    ({"stream": "yes"}, "stream must be True or False"),
    ({"stream_options": {"include_usage": True}}, "stream is not True"),
    ({"stream": True, "stream_options": 3}, "stream_options must be a dictionary"),
    ({"stream": True, "stream_options": {"usage": True}}, "no member 'usage'"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage must be a bool"),
    ({"n": 0}, "n=0 is out of range"),
    ({"n": 1000}, "n=1000 is out of range"),
    ({"user": 5}, "user must be a string"),
    ({"session_id": ""}, "session_id is empty"),
    ({"model": 5}, "model must be a string"),
    ({"priority": "high"}, "priority"),
    ({"on_progress": 5}, "on_progress must be a function"),
]

BAD_COMPLETION: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 5}, "prompt must be a text or a list of token ids"),
    ({"prompt": b"bytes"}, "prompt"),
    ({"prompt": [1, "x"]}, "prompt"),
    ({"prompt": [1, 10**9]}, "prompt: token=1000000000 is out of range"),
    ({"prompt": [-1]}, "prompt: token"),
    ({"prompt": ["a"] * 200}, "at most 128"),
    ({"logprobs": -1}, "logprobs=-1 is out of range"),
    ({"logprobs": 10**9}, "logprobs"),
    ({"logprobs": True}, "logprobs must be an integer"),
    ({"echo": 1}, "echo must be True or False"),
    ({"best_of": 1, "n": 2}, "best_of=1 contradicts n=2"),
    ({"best_of": 2, "stream": True}, "cannot be streamed"),
    ({"suffix": 3}, "suffix must be a string"),
    ({"suffix": "x"}, "this one has no fim_pre"),
]

BAD_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages is empty"),
    ({"messages": "hello"}, "messages must be a list"),
    ({"messages": [{"role": "wizard", "content": ""}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"logprobs": 2}, "logprobs must be True or False"),
    ({"top_logprobs": 2}, "top_logprobs=2 needs logprobs=True"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs=-1 is out of range"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "contradicts max_completion_tokens"),
    ({"tools": "x"}, "tools must be a list"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [TOOL], "functions": [FUNCTION]}, "functions contradicts tools"),
    ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "come"}}},
        "tool_choice names 'come'",
    ),
    ({"tool_choice": "required"}, "there are no tools"),
    ({"function_call": {"name": "go"}}, "there are no functions"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls must be True or False"),
    ({"response_format": "json"}, "response_format must be an object"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}, "contradicts"),
    ({"tools": [TOOL], "grammar": 'root ::= "a"'}, "grammar contradicts tools"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs must be a dictionary"),
    ({"reasoning_effort": "extreme"}, "expected one of none, minimal, low"),
    ({"reasoning_budget": -2}, "reasoning_budget=-2 is out of range"),
    ({"reasoning_format": "x"}, "reasoning_format"),
    ({"enable_thinking": "x"}, "enable_thinking must be True or False"),
    ({"continue_final_message": True}, "continue_final_message needs an assistant message"),
    ({"add_generation_prompt": 1}, "add_generation_prompt must be True or False"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ANYWHERE + BAD_COMPLETION)
def test_a_bad_completion_says_what_is_wrong(
    context: Context, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(LlamaError) as caught:
        parse_completion(context, **{"prompt": "x", **arguments})
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("arguments", "message"), BAD_ANYWHERE + BAD_CHAT)
def test_a_bad_chat_says_what_is_wrong(
    context: Context, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(LlamaError) as caught:
        parse_chat(context, **{"messages": HELLO, **arguments})
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert context.rendered == 0


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("temprature", "temperature"),
        ("temp", "temperature"),
        ("max_token", "max_tokens"),
        ("stop_words", None),
        ("mirostats", "mirostat_tau"),
        ("repetition_penalty", "repeat_penalty"),
        ("xyzzy", None),
    ],
)
def test_an_unknown_parameter_names_the_nearest(
    context: Context, name: str, nearest: str | None
) -> None:
    unknown: dict[str, Any] = {name: 1}
    with pytest.raises(UnknownParameterError, match=f"no parameter '{name}'") as caught:
        parse_completion(context, "x", **unknown)
    assert isinstance(caught.value, TypeError)
    if nearest is not None:
        assert f"did you mean '{nearest}'?" in str(caught.value)
    with pytest.raises(UnknownParameterError):
        parse_chat(context, HELLO, **unknown)


class Answer:
    """As Pydantic's models are."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object"}


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"response_format": Answer}, '"schema": Answer.model_json_schema()}'),
        (
            {"tools": [{"type": "function", "name": "f", "parameters": {}}]},
            '{"type": "function", "function": {"name": "f", "parameters": {...}}}',
        ),
    ],
    ids=["a class", "a flat tool"],
)
def test_a_usual_mistake_is_told_what_is_right(
    context: Context, arguments: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(ParameterTypeError) as caught:
        parse_chat(context, HELLO, **arguments)
    assert remedy in str(caught.value)


LLAMA_CPP_PYTHON = {
    "max_tokens", "temperature", "top_p", "min_p", "typical_p", "logprobs", "stop",
    "frequency_penalty", "presence_penalty", "repeat_penalty", "top_k", "stream", "seed", "tfs_z",
    "mirostat_mode", "mirostat_tau", "mirostat_eta", "model", "logits_processor", "grammar",
    "logit_bias",
}  # fmt: skip


def test_every_parameter_of_llama_cpp_python_is_known() -> None:
    of_completions = {"suffix", "echo", "stopping_criteria"}
    assert (LLAMA_CPP_PYTHON | of_completions) - {"stream"} <= COMPLETION.options.keys()
    tools = {"functions", "function_call", "tools", "tool_choice", "response_format"}
    assert (LLAMA_CPP_PYTHON | tools | {"top_logprobs"}) - {"stream"} <= CHAT.options.keys()


@pytest.mark.parametrize("name", [*COMPLETION.options, "stream"])
def test_none_is_not_given_in_completions(context: Context, name: str) -> None:
    nothing: dict[str, Any] = {name: None}
    request = parse_completion(context, "x", **nothing).requests[0]
    plain = parse_completion(context, "x").requests[0]
    assert request.sampling == plain.sampling
    if name != "max_tokens":
        assert request.generation == plain.generation


@pytest.mark.parametrize("name", [*CHAT.options, "stream"])
def test_none_is_not_given_in_chats(context: Context, name: str) -> None:
    given: dict[str, Any] = {name: None}
    request = parse_chat(context, HELLO, **given).requests[0]
    plain = parse_chat(context, HELLO).requests[0]
    assert (request.sampling, request.generation) == (plain.sampling, plain.generation)


def test_defaults_are_those_of_llama_cpp_python(context: Context) -> None:
    completion = parse_completion(context, "x").requests[0]
    chat = parse_chat(context, HELLO).requests[0]
    assert completion.sampling.temperature == 0.8
    assert completion.generation.max_tokens == 16
    assert chat.sampling.temperature == 0.2
    assert chat.generation.max_tokens is None
    for request in (completion, chat):
        sampling = request.sampling
        assert (sampling.top_k, sampling.top_p, sampling.min_p) == (40, 0.95, 0.05)
        assert sampling.repeat_penalty == 1.0
        assert sampling.penalty_last_n == 64
        assert sampling.seed == RANDOM_SEED


def test_defaults_of_the_loaded_model(context: Context) -> None:
    context.seed, context.last_n_tokens_size = 7, 99
    sampling = parse_completion(context, "x").requests[0].sampling
    assert (sampling.seed, sampling.penalty_last_n) == (7, 99)
    assert parse_completion(context, "x", seed=8).requests[0].sampling.seed == 8


@pytest.mark.parametrize("given", [None, 0, -1, -5])
def test_max_tokens_until_the_end_of_the_context(context: Context, given: int | None) -> None:
    call = parse_completion(context, "x", max_tokens=given)
    assert call.requests[0].generation.max_tokens is None
    assert parse_chat(context, HELLO, max_tokens=given).requests[0].generation.max_tokens is None


def test_max_completion_tokens_is_max_tokens(context: Context) -> None:
    call = parse_chat(context, HELLO, max_completion_tokens=5)
    assert call.requests[0].generation.max_tokens == 5


def test_tail_free_sampling_is_gone(context: Context) -> None:
    parse_completion(context, "x", tfs_z=1.0)
    with pytest.warns(DeprecationWarning, match="tfs_z"):
        parse_completion(context, "x", tfs_z=0.5)


def test_stop_is_one_string_or_several(context: Context) -> None:
    def stops(**options: Any) -> tuple[str, ...]:
        return parse_completion(context, "x", **options).requests[0].generation.stop

    assert stops(stop="a") == ("a",)
    assert stops(stop=["a", "b", "a"]) == ("a", "b")
    assert stops(stop=[]) == stops(stop=None) == stops() == ()


def test_logit_bias_takes_ids_as_numbers_and_as_text(context: Context) -> None:
    bias: Any = {5: 1, "6": -100, 7: False, "8": -math.inf}
    sampling = parse_completion(context, "x", logit_bias=bias).requests[0].sampling
    assert sampling.logit_bias == {5: 1.0, 6: -100.0, 7: -math.inf, 8: -math.inf}


def test_processors_come_alone_or_in_lists(context: Context) -> None:
    def process(_tokens: Any, row: Any) -> Any:
        return row + 1

    def stop(_tokens: Any, _row: Any) -> bool:
        return False

    for wrap in (lambda one: one, lambda one: [one], lambda one: (one,)):
        call = parse_completion(
            context, "x", logits_processor=wrap(process), stopping_criteria=wrap(stop)
        )
        assert call.requests[0].sampling.logits_processors == (process,)
        assert call.requests[0].generation.stopping_criteria == (stop,)
    processors = LogitsProcessorList([process, process])
    call = parse_completion(context, "x", logits_processor=processors)
    assert call.requests[0].sampling.logits_processors == (process, process)
    row = np.zeros(3, np.float32)
    assert processors(np.zeros(1, np.intc), row).tolist() == [2, 2, 2]
    criteria = StoppingCriteriaList([stop, lambda tokens, row: True])
    assert criteria(np.zeros(1, np.intc), row)
    assert not StoppingCriteriaList([stop])(np.zeros(1, np.intc), row)


def test_samplers_in_any_spelling(context: Context) -> None:
    for given in ("penalties;top-k;typ_p;temp", ["penalties", "top_k", "typical", "temperature"]):
        sampling = parse_completion(context, "x", samplers=given).requests[0].sampling
        assert sampling.samplers == ("penalties", "top_k", "typical_p", "temperature")


def test_grammars(context: Context) -> None:
    spec: Any = GrammarSpec('root ::= "a"')
    for given in (spec, spec.gbnf, LlamaGrammar.from_string(spec.gbnf)):
        assert parse_completion(context, "x", grammar=given).requests[0].sampling.grammar == spec
        assert parse_chat(context, HELLO, grammar=given).requests[0].sampling.grammar == spec


def test_a_grammar_from_a_schema_constrains(context: Context) -> None:
    grammar = LlamaGrammar.from_json_schema({"type": "boolean"})
    sampling = parse_completion(context, "x", grammar=grammar).requests[0].sampling
    assert (sampling.grammar is None) != (sampling.constraint is None)


def test_the_user_selects_the_session(context: Context) -> None:
    messages = [{"role": "user", "content": "hi", "name": "mallory"}]
    assert parse_chat(context, messages).requests[0].session is None
    assert parse_chat(context, messages, user="alice").requests[0].session == "alice"
    call = parse_chat(context, messages, user="alice", session_id="s1")
    assert call.requests[0].session == "s1"
    assert parse_completion(context, "x", user="bob").requests[0].session == "bob"
    assert parse_chat(context, messages, user="").requests[0].session is None


def test_only_one_choice_is_the_conversation(context: Context) -> None:
    call = parse_chat(context, HELLO, user="alice", n=3)
    assert [request.session for request in call.requests] == ["alice", None, None]
    assert [request.choice for request in call.requests] == [0, 1, 2]


# ---- sampling defaults in the GGUF -----------------------------------------------------------


def test_a_model_may_bring_its_sampling_along(context: Context) -> None:
    context.metadata = {
        "general.sampling.temp": "0.6",
        "general.sampling.top_k": "20",
        "general.sampling.penalty_repeat": "1.05",
        "general.sampling.sequence": "top_k;temp;infill",
    }
    sampling = parse_chat(context, HELLO, top_k=7).requests[0].sampling
    assert sampling.temperature == 0.6
    assert sampling.top_k == 7
    assert sampling.repeat_penalty == 1.05
    assert sampling.samplers == ("top_k", "temperature")
    assert parse_completion(context, "x").requests[0].sampling.temperature == 0.6


def test_unusable_sampling_metadata_is_ignored_and_logged(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    context.metadata = {"general.sampling.top_p": "7", "general.sampling.temp": "warm"}
    sampling = parse_chat(context, HELLO).requests[0].sampling
    assert (sampling.top_p, sampling.temperature) == (0.95, 0.2)
    assert "general.sampling.top_p is ignored" in caplog.text
    assert "general.sampling.temp is ignored" in caplog.text


def test_greedy_stays_greedy_when_the_model_wants_mirostat(context: Context) -> None:
    context.metadata = {"general.sampling.mirostat": "2"}
    assert parse_chat(context, HELLO).requests[0].sampling.mirostat == 2
    assert parse_chat(context, HELLO, temperature=0).requests[0].sampling.greedy


# ---- prompts ---------------------------------------------------------------------------------


def test_message_starts_are_byte_offsets(context: Context) -> None:
    messages = [
        {"role": "user", "content": "naïve 你"},
        {"role": "assistant", "content": "é"},
        {"role": "user", "content": "x"},
    ]
    prompt = parse_chat(context, messages).requests[0].prompt
    assert prompt.text is not None
    assert len(prompt.boundaries) == 3
    assert all(prompt.text[at:].startswith(b"<|im_start|>") for at in prompt.boundaries)


def test_an_assistant_message_can_be_continued(context: Context) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    prompt = parse_chat(context, messages, continue_final_message=True).requests[0].prompt
    assert prompt.text is not None
    assert prompt.text.endswith(b"Once upon")


def test_contradictions_about_the_last_message(context: Context) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    with pytest.raises(ParameterError, match="add_generation_prompt contradicts"):
        parse_chat(context, messages, continue_final_message=True, add_generation_prompt=True)
    closed = parse_chat(context, messages).requests[0].prompt.text
    assert closed is not None
    assert closed.endswith(b"<|im_start|>assistant\n")


def test_the_server_goes_on_with_the_last_message(context: Context) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    prompt = read_chat(context, {"messages": begun}, RequestLimits(), "m").requests[0].prompt
    assert prompt.text is not None
    assert prompt.text.endswith(b"Once upon")
    turn = {"messages": begun, "continue_final_message": False}
    prompt = read_chat(context, turn, RequestLimits(), "m").requests[0].prompt
    assert prompt.text is not None
    assert prompt.text.endswith(b"<|im_start|>assistant\n")
    twice = {"messages": [*begun, begun[-1]]}
    with pytest.raises(ParameterError, match="two messages of the assistant"):
        read_chat(context, twice, RequestLimits(), "m")
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    prompt = read_chat(context, {"messages": called}, RequestLimits(), "m").requests[0].prompt
    assert prompt.text is not None
    assert prompt.text.endswith(b"<|im_start|>assistant\n")


def test_an_empty_prompt_begins_with_bos(context: Context) -> None:
    assert parse_completion(context, "").requests[0].prompt.tokens == [context.vocab.bos]
    assert parse_completion(context, []).requests[0].prompt.tokens == [context.vocab.bos]


def test_numbers_may_be_numpys(context: Context) -> None:
    tokens = np.array([5, 6, 7], np.int32)
    for prompt in (tokens, list(tokens), [5, 6, 7]):
        assert parse_completion(context, prompt).requests[0].prompt.tokens == [5, 6, 7]
    bias: Any = {np.int64(3): np.float32(1.5)}
    assert parse_completion(context, "x", logit_bias=bias).requests[0].sampling.logit_bias == {
        3: 1.5
    }


def test_wrong_types_are_type_errors_too(context: Context) -> None:
    with pytest.raises(ParameterTypeError) as caught:
        parse_completion(context, "x", stop=5)  # type: ignore[arg-type]
    assert isinstance(caught.value, TypeError)
