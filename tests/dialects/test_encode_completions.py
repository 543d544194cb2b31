"""Completions: what a caller gets for the tokens that a model samples."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_py.core.vocab import Vocab
from llama_py.dialects.openai.completions import parse_completion
from llama_py.dialects.openai.fold import fold_completion
from llama_py.engine.generation import whole_characters
from llama_py.engine.request import Record
from llama_py.errors import DecodeError
from tests.dialects.playing import Context, OpenVocab, drive, play


def tokens_of(vocab: Vocab, text: str) -> list[int]:
    return vocab.tokenize(text, add_special=False, parse_special=True)


def complete(context: Context, prompt: Any, *replies: str, **options: Any) -> tuple[Any, Any]:
    """The chunks and the response for given replies."""
    call = parse_completion(context, prompt, **options)
    return drive(context.vocab, call, [tokens_of(context.vocab, text) for text in replies])


def same_but_for_the_clock(first: Any, second: Any) -> bool:
    def cleaned(response: Any) -> Any:
        return {k: v for k, v in response.items() if k not in ("id", "created", "timings")}

    return bool(cleaned(first) == cleaned(second))


def test_a_completion_has_the_shape_of_openai(context: Context) -> None:
    chunks, response = complete(context, "Once", " upon a time<|im_end|>", max_tokens=20)
    assert chunks == []
    assert response["id"].startswith("cmpl-")
    assert response["object"] == "text_completion"
    assert response["model"] == "tiny.gguf"
    assert response["choices"] == [
        {"text": " upon a time", "index": 0, "logprobs": None, "finish_reason": "stop"}
    ]
    usage = response["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert response["timings"]["predicted_n"] == usage["completion_tokens"]


def test_a_stream_ends_with_its_reason_then_usage(context: Context) -> None:
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    chunks, response = complete(context, "Once", " upon a time", **options)
    assert {chunk["id"] for chunk in chunks} == {response["id"]}
    assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"]][-1] == "length"
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == response["usage"]
    assert "timings" in chunks[-2]


def test_no_usage_unless_asked_for(context: Context) -> None:
    chunks, _ = complete(context, "Once", " upon", stream=True)
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_cached_tokens_are_reported(context: Context) -> None:
    call = parse_completion(context, "Once upon")
    record = Record(call.requests[0], tokens=[1, 2, 3, 4], cache={"reused": 3})
    record.submitted, record.started, record.first_token, record.ended = 0.0, 1.0, 1.5, 3.5
    encoder = call.encoder([record])
    response: Any = encoder.response()
    assert response["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    timings = response["timings"]
    assert (timings["cache_n"], timings["prompt_n"]) == (3, 1)
    assert timings["prompt_ms"] == pytest.approx(500)
    assert timings["prompt_per_second"] == pytest.approx(2)
    assert timings["predicted_ms"] == pytest.approx(2000)
    tokens = tokens_of(context.vocab, "a b c d")
    for event in play(context.vocab, Record(call.requests[0]), tokens):
        encoder.feed(0, event)
    timings = encoder.timings()
    assert timings["predicted_n"] > 2
    assert timings["predicted_per_second"] == pytest.approx((timings["predicted_n"] - 1) / 2)


def test_an_error_is_never_a_stop(context: Context) -> None:
    call = parse_completion(context, "Once", stream=True)
    tokens = tokens_of(context.vocab, " upon")
    chunks, response = drive(context.vocab, call, [tokens], DecodeError("broken"))
    assert chunks[-1]["choices"][0]["finish_reason"] == "error"
    assert response["choices"][0]["finish_reason"] == "error"
    assert response["choices"][0]["text"] == " upon"


def test_model_names_the_response(context: Context) -> None:
    assert complete(context, "a", "b", model="other")[1]["model"] == "other"


# ---- echo ------------------------------------------------------------------------------------


def test_echo_begins_with_the_prompt(context: Context) -> None:
    chunks, response = complete(context, "Once", " upon", echo=True, stream=True)
    assert chunks[0]["choices"][0]["text"] == "Once"
    assert response["choices"][0]["text"] == "Once upon"


def test_echo_of_tokens_shows_their_text(context: Context) -> None:
    tokens = tokens_of(context.vocab, "<|im_start|>user")
    _, response = complete(context, tokens, "x", echo=True)
    assert response["choices"][0]["text"] == "<|im_start|>userx"


def test_scoring_a_prompt_generates_nothing(context: Context) -> None:
    call = parse_completion(context, "Once upon", echo=True, max_tokens=0, logprobs=1)
    assert call.requests[0].generation.max_tokens == 0
    _, response = drive(context.vocab, call, [[]])
    choice = response["choices"][0]
    assert choice["text"] == "Once upon"
    assert "".join(choice["logprobs"]["tokens"]) == "Once upon"


@pytest.mark.parametrize("bos", [False, True])
def test_echoed_logprobs_are_aligned(context: Context, open_vocab: OpenVocab, bos: bool) -> None:
    context.vocab = open_vocab(add_bos_token=bos)
    prompt = "Once upon a naïve time"
    _, response = complete(context, prompt, " 你 there", echo=True, logprobs=2)
    choice = response["choices"][0]
    logprobs, text = choice["logprobs"], choice["text"]
    assert text == prompt + " 你 there"
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert None not in logprobs["token_logprobs"][1:]
    ids = tokens_of(context.vocab, prompt) + tokens_of(context.vocab, " 你 there")
    assert logprobs["token_logprobs"][1:] == [-0.5 - token / 1000 for token in ids[1:]]
    for token, start in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert text.startswith(token, start)


# ---- log-probabilities -----------------------------------------------------------------------


def test_the_alternatives_contain_the_chosen_token(context: Context) -> None:
    _, response = complete(context, "Once", " upon", logprobs=3)
    logprobs = response["choices"][0]["logprobs"]
    for token, value, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert token in top
        assert value < 0
        assert 3 <= len(top) <= 4


def test_offsets_count_from_the_beginning_of_the_prompt(context: Context) -> None:
    _, response = complete(context, "Once", " upon", logprobs=0)
    assert response["choices"][0]["logprobs"]["text_offset"][0] == len("Once")


def test_pieces_of_a_character_share_its_offset(context: Context) -> None:
    _, response = complete(context, "", "é你x", logprobs=0)
    logprobs = response["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["é", "bytes:\\xe4", "bytes:\\xbd", "bytes:\\xa0", "x"]
    assert logprobs["text_offset"] == [0, 1, 1, 1, 2]


def test_no_entries_for_the_stop_string(context: Context) -> None:
    for stream in (False, True):
        chunks, response = complete(
            context, "", "one two STOP more", stop=["STOP"], logprobs=0, stream=stream
        )
        whole: Any = fold_completion(chunks) if stream else response
        choice = whole["choices"][0]
        assert choice["text"] == "one two "
        assert choice["finish_reason"] == "stop"
        assert "".join(choice["logprobs"]["tokens"]) == "one two "


# ---- several choices -------------------------------------------------------------------------


def test_several_choices_are_numbered(context: Context) -> None:
    chunks, response = complete(context, "a", " one", " two", " three", n=3, stream=True)
    assert [choice["text"] for choice in response["choices"]] == [" one", " two", " three"]
    assert [choice["index"] for choice in response["choices"]] == [0, 1, 2]
    assert {c["index"] for chunk in chunks for c in chunk["choices"]} == {0, 1, 2}
    usage = response["usage"]
    assert usage["prompt_tokens"] == 1
    assert [("timings" in chunk) for chunk in chunks].count(True) == 1


def test_several_prompts_make_several_choices(context: Context) -> None:
    _, response = complete(context, ["a", [5, 6, 7]], " one", " two", echo=True)
    assert [c["text"][-4:] for c in response["choices"]] == [" one", " two"]
    assert response["choices"][0]["text"] == "a one"
    assert response["usage"]["prompt_tokens"] == 4


def test_best_of_returns_the_likeliest(context: Context) -> None:
    vocab = context.vocab
    call = parse_completion(context, "a", n=2, best_of=3)
    assert call.requests[0].generation.logprobs == 0
    # the lower the id, the likelier (see logprobs_of)
    _, response = drive(vocab, call, [[300, 301], [100, 101], [200, 201]])
    texts = [whole_characters(vocab.detokenize(ids)) for ids in ([100, 101], [200, 201])]
    assert [choice["text"] for choice in response["choices"]] == texts
    assert [choice["index"] for choice in response["choices"]] == [0, 1]
    assert response["choices"][0]["logprobs"] is None
    assert response["usage"]["completion_tokens"] == 6


def test_best_of_compares_replies_of_any_length(context: Context) -> None:
    """By the mean of their log-probabilities: a sum would always prefer the short ones."""
    vocab = context.vocab
    call = parse_completion(context, "a", n=2, best_of=3)
    replies = [[300, 301], [100] * 8, [200, 201, 202, 203]]
    _, response = drive(vocab, call, replies)
    texts = [whole_characters(vocab.detokenize(ids)) for ids in (replies[1], replies[2])]
    assert [choice["text"] for choice in response["choices"]] == texts


# ---- streams are equal to non-streams --------------------------------------------------------


@given(data=st.data())
def test_a_stream_adds_up_to_the_response(vocab: Vocab, template: Any, data: st.DataObject) -> None:
    context = Context(vocab, template)
    ids = st.integers(0, vocab.n_tokens - 1).filter(lambda token: not vocab.is_eog(token))
    replies = data.draw(st.lists(st.lists(ids, max_size=20), min_size=1, max_size=3))
    whole = vocab.detokenize(replies[0]).decode("utf-8", "ignore")
    stops = [whole[i : i + 3] for i in data.draw(st.lists(st.integers(0, 40), max_size=2))]
    options: dict[str, Any] = {
        "n": len(replies),
        "stop": [stop for stop in stops if stop],
        "logprobs": data.draw(st.sampled_from([None, 0, 2])),
        "echo": data.draw(st.booleans()),
    }
    prompt = data.draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=9))
    plain = drive(vocab, parse_completion(context, prompt, **options), replies)[1]
    streaming: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    chunks, response = drive(
        vocab, parse_completion(context, prompt, **options, **streaming), replies
    )
    assert fold_completion(chunks) == response
    assert same_but_for_the_clock(response, plain)
    for choice in response["choices"]:
        check_logprobs(choice, prompt if options["echo"] else "", len(prompt))


def check_logprobs(choice: Any, echo: str, offset: int) -> None:
    logprobs = choice["logprobs"]
    if not logprobs or not logprobs["tokens"]:
        return
    text = choice["text"] if echo else " " * offset + choice["text"]
    offsets = logprobs["text_offset"]
    assert offsets == sorted(offsets)
    assert offsets[0] == (0 if echo else offset)
    assert offsets[-1] <= len(text)
