"""llama-server's ``/completion``: what is read of a body, and what the replies look like."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from llama_py.dialects.failures import Failure, Kind, RequestError
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.llama_server.bodies import read_native, slot_session
from llama_py.dialects.llama_server.line_limits import Indentation, LineLimit
from llama_py.dialects.llama_server.wire import chosen_fields
from llama_py.dialects.usage import PromptProgress
from llama_py.dialects.wire import WireCall
from llama_py.engine.request import Record
from llama_py.errors import LlamaError, ParameterError
from tests.dialects.playing import Context, play

LIMITS = RequestLimits()


def read(context: Context, **body: Any) -> WireCall:
    return read_native(context, {"prompt": "hello", **body}, LIMITS, "tiny")


def reply_to(context: Context, tokens: Sequence[int], **body: Any) -> tuple[bytes, Any]:
    """The frames and the whole of a reply whose model samples these tokens."""
    call = read(context, **body)
    records = [Record(request) for request in call.requests]
    reply = call.encoder(records)
    frames = reply.open()
    for index, record in enumerate(records):
        for event in play(context.vocab, record, tokens):
            frames += reply.feed(index, event)
    return frames + reply.close(), reply.whole()


def events(frames: bytes) -> list[dict[str, Any]]:
    parts = frames.split(b"\n\n")
    assert parts.pop() == b""
    assert all(part.startswith(b"data: ") for part in parts)
    return [json.loads(part[6:]) for part in parts]


# ---- reading ---------------------------------------------------------------------------------


def test_options_by_their_names(context: Context) -> None:
    (request,) = read(
        context,
        n_predict=7,
        temperature=0.5,
        repeat_last_n=3,
        mirostat=2,
        typical_p=0.5,
        samplers=["typ_p", "temperature", "no such thing"],
        stop=["a", "", "a"],
        n_probs=3,
        ignore_eos=True,
        id_slot=-1,
        some_new_option={"x": 1},
        top_k=None,
    ).requests
    sampling, generation = request.sampling, request.generation
    assert (sampling.temperature, sampling.penalty_last_n, sampling.mirostat) == (0.5, 3, 2)
    assert (sampling.typical_p, sampling.top_k) == (0.5, 40)
    assert sampling.samplers == ("typical_p", "temperature")
    assert (generation.max_tokens, generation.stop, generation.logprobs) == (7, ("a",), 3)
    assert generation.ignore_eos
    assert request.reuse


@pytest.mark.parametrize(("given", "most"), [(-1, None), (0, 0), (5, 5), (None, None)])
def test_n_predict(context: Context, given: int | None, most: int | None) -> None:
    assert read(context, n_predict=given).requests[0].generation.max_tokens == most
    assert read(context, max_tokens=given).requests[0].generation.max_tokens == most


def test_whole_numbers_of_any_kind(context: Context) -> None:
    (request,) = read(context, n_predict=7.0, top_k=5.0, repeat_last_n=3.0, seed=1.0).requests
    assert request.generation.max_tokens == 7
    assert (request.sampling.top_k, request.sampling.penalty_last_n) == (5, 3)
    assert all(isinstance(n, int) for n in (request.sampling.top_k, request.sampling.seed))


def test_samplers_as_letters(context: Context) -> None:
    (request,) = read(context, samplers="kpt?").requests
    assert request.sampling.samplers == ("top_k", "top_p", "temperature")


def test_biases_in_every_form(context: Context) -> None:
    hello = context.vocab.tokenize("hello", add_special=False)
    forms: list[Any] = [
        [[5, 1.5], ["hello", -1], [6, False]],
        {"5": 1.5, "hello": -1, "6": False},
        [{"token": 5, "bias": 1.5}, {"token": "hello", "bias": -1}, {"token": 6, "bias": False}],
    ]
    for form in forms:
        bias = read(context, logit_bias=form).requests[0].sampling.logit_bias
        assert bias == {5: 1.5, 6: -math.inf, **dict.fromkeys(hello, -1.0)}


@pytest.mark.parametrize("key", ["--5", "-", "12345678901234567890 apples"])
def test_a_key_that_is_no_number_is_a_text(context: Context, key: str) -> None:
    tokens = context.vocab.tokenize(key, add_special=False)
    bias = read(context, logit_bias={key: 2}).requests[0].sampling.logit_bias
    assert bias == dict.fromkeys(tokens, 2.0)


def test_a_key_with_many_digits(context: Context) -> None:
    with pytest.raises(ParameterError, match="logit_bias: token="):
        read(context, logit_bias={"9" * 5000: 2})


def test_prompts_of_every_form(context: Context) -> None:
    vocab = context.vocab
    hello = vocab.tokenize("hello", add_special=False, parse_special=True)

    def prompts(value: Any) -> list[Any]:
        requests = read(context, prompt=value).requests
        return [each.prompt.text or each.prompt.tokens for each in requests]

    assert prompts("hello") == [b"hello"]
    assert prompts([5, 6]) == [[5, 6]]
    assert prompts([5, "hello", 6]) == [[5, *hello, 6]]
    assert prompts(["a", "b"]) == [b"a", b"b"]
    assert prompts([[5, "hello"], "a", {"prompt_string": "b"}]) == [[5, *hello], b"a", b"b"]
    assert prompts({"prompt_string": "b"}) == [b"b"]


def test_without_the_cache_a_prompt_has_its_own_tokens(context: Context) -> None:
    (request,) = read(context, cache_prompt=False).requests
    assert not request.reuse
    assert request.prompt.tokens == context.vocab.tokenize("hello", parse_special=True)


def test_several_completions(context: Context) -> None:
    call = read(context, prompt=["a", "b"], n_cmpl=2)
    assert [each.prompt.text for each in call.requests] == [b"a", b"a", b"b", b"b"]
    assert [each.choice for each in call.requests] == [0, 1, 2, 3]


def test_a_schema_or_rules(context: Context) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}

    def constrains(**body: Any) -> bool:
        sampling = read(context, **body).requests[0].sampling
        return sampling.grammar is not None or sampling.constraint is not None

    assert constrains(json_schema=schema)
    assert constrains(json_schema={})
    assert not constrains(grammar="")
    assert constrains(grammar="", json_schema=schema)
    rules = read(context, grammar='root ::= "yes"', json_schema=None).requests[0].sampling
    assert rules.grammar is not None
    assert rules.grammar.gbnf == 'root ::= "yes"'
    assert rules.constraint is None


#: (fields, a part of the message)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 5}, "prompt must be"),
    ({"prompt": []}, "prompt is empty"),
    ({"prompt": [True]}, "prompt must be"),
    ({"prompt": [5, None]}, r"prompt\[1\]"),
    ({"prompt": [10**9]}, r"prompt\[0\]"),
    ({"prompt": [-1]}, r"prompt\[0\]"),
    ({"prompt": [1.5]}, r"prompt\[0\]"),
    ({"prompt": ["a"] * 65}, "at most 64"),
    ({"prompt": {"prompt_string": "x", "multimodal_data": ["eA=="]}}, "multimodal_data"),
    ({"n_predict": -2}, "n_predict"),
    ({"n_predict": "many"}, "n_predict"),
    ({"n_cmpl": 9}, "n_cmpl=9"),
    ({"n_probs": 21}, "n_probs=21"),
    ({"n_probs": -1}, "n_probs"),
    ({"repeat_last_n": "x"}, "repeat_last_n must be"),
    ({"mirostat": 3}, "mirostat=3"),
    ({"temperature": "hot"}, "temperature"),
    ({"samplers": 3}, "samplers"),
    ({"samplers": [1]}, "samplers"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop"),
    ({"stop": [str(i) for i in range(17)]}, "at most 16"),
    ({"stream": "yes"}, "stream"),
    ({"cache_prompt": 1}, "cache_prompt"),
    ({"id_slot": "a"}, "id_slot"),
    ({"response_fields": "content"}, "response_fields"),
    ({"response_fields": [1]}, "response_fields"),
    ({"logit_bias": 5}, "logit_bias"),
    ({"logit_bias": [[1]]}, "logit_bias"),
    ({"logit_bias": [[1, "x"]]}, "logit_bias"),
    ({"logit_bias": [[10**9, 1]]}, "logit_bias"),
    ({"logit_bias": {"-5": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"grammar": 5}, "grammar"),
    ({"grammar": "root"}, "grammar"),
    ({"json_schema": 5}, "schema"),
    ({"t_max_predict_ms": "x"}, "t_max_predict_ms"),
    ({"n_indent": -1}, "n_indent"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_what_is_refused(context: Context, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LlamaError, match=message):
        read(context, **fields)


def test_what_is_not_known_means_nothing_unless_the_server_is_strict(context: Context) -> None:
    body = {"prompt": "x", "n_keep": 5, "some_new_option": 1}
    read_native(context, body, LIMITS, "tiny")
    with pytest.raises(RequestError, match="'some_new_option' is not known"):
        read_native(context, body, RequestLimits(strict=True), "tiny")
    del body["some_new_option"]
    read_native(context, body, RequestLimits(strict=True), "tiny")


def test_a_missing_prompt(context: Context) -> None:
    with pytest.raises(RequestError, match="prompt") as caught:
        read_native(context, {}, LIMITS, "tiny")
    assert caught.value.failure.kind is Kind.MISSING


@pytest.mark.parametrize("fields", [{"post_sampling_probs": True}, {"lora": [{"id": 0}]}])
def test_what_would_give_something_else_is_refused(
    context: Context, fields: dict[str, Any]
) -> None:
    with pytest.raises(RequestError) as caught:
        read(context, **fields)
    assert caught.value.failure.kind is Kind.NOT_IMPLEMENTED
    read(context, **{name: type(value)() for name, value in fields.items()})


def test_a_slot_is_the_name_of_a_session() -> None:
    assert slot_session({"id_slot": 3}) == "slot-3"
    assert slot_session({"id_slot": -1}) is None
    assert slot_session({}) is None
    with pytest.raises(ParameterError):
        slot_session({"id_slot": -2})


# ---- replies ---------------------------------------------------------------------------------


@pytest.fixture
def words(context: Context) -> list[int]:
    """A reply with characters that tokens share between them, and an end."""
    vocab = context.vocab
    return [*vocab.tokenize("naïve 🙂\nand\n日本 more", add_special=False), vocab.eos]


def test_a_stream_is_the_whole_in_pieces(context: Context, words: list[int]) -> None:
    fields: dict[str, Any] = {"n_predict": 99, "return_tokens": True, "n_probs": 2}
    _, whole = reply_to(context, words, **fields)
    frames, _ = reply_to(context, words, **fields, stream=True)
    *partial, last = events(frames)
    assert whole["content"] == "naïve 🙂\nand\n日本 more"
    assert whole["tokens"] == words
    assert "".join(each["content"] for each in partial) == whole["content"]
    assert [token for each in partial for token in each["tokens"]] == whole["tokens"]
    probs = [entry for each in partial for entry in each.get("completion_probabilities", ())]
    assert probs == whole["completion_probabilities"]
    assert [each["stop"] for each in partial] == [False] * len(partial)
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    assert partial[-1]["tokens_predicted"] == whole["tokens_predicted"] == len(words)
    drop = ("content", "tokens", "completion_probabilities", "timings", "generation_settings")
    same = [{k: v for k, v in each.items() if k not in drop} for each in (last, whole)]
    assert same[0] == same[1]


def test_quick_events_are_those_with_all_members(context: Context, words: list[int]) -> None:
    quick, _ = reply_to(context, words, stream=True)
    timed, _ = reply_to(context, words, stream=True, timings_per_token=True)
    for short, long in zip(events(quick)[:-1], events(timed)[:-1], strict=True):
        assert long.pop("timings")["predicted_n"] == short["tokens_predicted"]
        assert short == long


def test_how_it_ended(context: Context, words: list[int]) -> None:
    def ending(tokens: Sequence[int], **body: Any) -> tuple[str, str, bool]:
        _, whole = reply_to(context, tokens, **body)
        return whole["stop_type"], whole["stopping_word"], whole["truncated"]

    assert ending(words) == ("eos", "", False)
    assert ending(words, stop=["and"]) == ("word", "and", False)
    assert ending(words[:3], n_predict=3) == ("limit", "", False)
    assert ending(words[:3], n_predict=9) == ("limit", "", True)
    assert ending(words[:3]) == ("limit", "", True)


def test_text_before_a_stop_string_and_its_tokens(context: Context, words: list[int]) -> None:
    _, whole = reply_to(context, words, stop=["and"], return_tokens=True, n_probs=1)
    assert whole["content"] == "naïve 🙂\n"
    assert whole["has_new_line"]
    shown = b"".join(bytes(each["bytes"]) for each in whole["completion_probabilities"])
    assert shown.decode() == whole["content"]


def test_probabilities(context: Context) -> None:
    _, whole = reply_to(context, [300, context.vocab.eos], n_probs=2)
    (entry,) = whole["completion_probabilities"]
    assert entry["id"] == 300
    assert entry["bytes"] == list(context.vocab.piece(300))
    assert entry["logprob"] == pytest.approx(-0.8)
    assert [each["id"] for each in entry["top_logprobs"]] == [300, 301]


def test_chosen_fields(context: Context, words: list[int]) -> None:
    wanted = ["content", "generation_settings/n_predict", "no/such", "timings/nothing", "stop/x"]
    _, whole = reply_to(context, words, response_fields=wanted, n_predict=50)
    assert whole.keys() == {"content", "generation_settings/n_predict"}
    assert whole["generation_settings/n_predict"] == 50
    assert chosen_fields({"a": {"b": None}}, ["a/b", "a"]) == {"a/b": None, "a": {"b": None}}


def test_settings_are_told_by_their_names(context: Context, words: list[int]) -> None:
    _, whole = reply_to(
        context, words, repeat_last_n=5, stop="x", logit_bias=[[1, False]], samplers="ky"
    )
    settings = whole["generation_settings"]
    assert settings["repeat_last_n"] == 5
    assert settings["stop"] == ["x"]
    assert settings["dry_penalty_last_n"] == 64
    assert settings["n_predict"] == settings["max_tokens"] == -1
    assert settings["logit_bias"] == [{"token": 1, "bias": None}]
    _, whole = reply_to(context, words, ignore_eos=True, logit_bias=settings["logit_bias"])
    ends = [{"token": token, "bias": None} for token in context.vocab.eog_tokens()]
    assert whole["generation_settings"]["logit_bias"] == [*ends, {"token": 1, "bias": None}]
    assert settings["samplers"] == ["top_k", "typ_p"]
    _, none = reply_to(context, words, samplers=[])
    assert none["generation_settings"]["samplers"] == []
    json.dumps(whole, allow_nan=False)


def test_several_replies_are_a_list(context: Context, words: list[int]) -> None:
    _, whole = reply_to(context, words, prompt=["a", "b"])
    assert [each["index"] for each in whole] == [0, 1]


def test_the_prompt_only_where_it_is_allowed(context: Context) -> None:
    body = {"prompt": "hello there"}
    for expose in (False, True):
        call = read_native(context, body, LIMITS, "tiny", expose_prompt=expose)
        record = Record(call.requests[0])
        reply = call.encoder([record])
        for event in play(context.vocab, record, [context.vocab.eos]):
            reply.feed(0, event)
        assert reply.whole().get("prompt") == ("hello there" if expose else None)


def test_frames_beside_the_reply(context: Context) -> None:
    call = read(context, stream=True, return_progress=True)
    assert call.wants_progress
    reply = call.encoder([Record(call.requests[0])])
    assert reply.keep_alive() == b":\n\n"
    (told,) = events(reply.progress(PromptProgress(60, 50, 100, 1.25, 1.0)))
    assert told["prompt_progress"] == {"total": 100, "cache": 50, "processed": 60, "time_ms": 1250}
    assert (told["content"], told["stop"]) == ("", False)
    (failed,) = events(reply.fail(Failure(Kind.INTERNAL, "it broke")))
    assert failed["error"]["message"] == "it broke"


def test_the_time_limit_counts_at_new_lines(context: Context) -> None:
    vocab = context.vocab
    line = vocab.tokenize("\n", add_special=False)
    word = vocab.tokenize("word", add_special=False)
    limit = LineLimit(vocab.plain_piece, 1e-9, 0)
    found = [(limit(tokens, None), limit.met) for tokens in (word, line)]
    assert found == [(False, False), (True, True)]
    assert not LineLimit(vocab.plain_piece, 1000.0, 0)(line, None)


#: (least indentation, text, what belongs to the block)
BLOCKS = [
    (4, "x = 1\n    y = 2\n    z\nend", "x = 1\n    y = 2\n    z\n"),
    (4, "x\n  y", "x\n  "),
    (2, "x\n\t\ty", "x\n\t\ty"),
    (2, "x\n\n  y", "x\n"),
    (0, "x\n\ny", "x\n\ny"),
    (4, "no line", "no line"),
    (4, "x\n    ", "x\n    "),
    (1, "x\né", "x\n"),
]


@pytest.mark.parametrize(("least", "text", "kept"), BLOCKS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_ends_with_its_block(
    context: Context, least: int, text: str, kept: str, stream: bool
) -> None:
    limit, whole = LineLimit(context.vocab.plain_piece, 0, least), Indentation(least)
    tokens = context.vocab.tokenize(text, add_special=False)
    assert any(limit([token], None) for token in tokens) == (kept != text)
    assert whole.kept(text) == kept
    frames, reply = reply_to(context, tokens, n_indent=least, stream=stream)
    shown = "".join(each["content"] for each in events(frames)) if stream else reply["content"]
    assert shown == kept
