"""llama-server's ``/infill``: the order of the parts, and what goes when there is no room."""

from __future__ import annotations

from typing import Any

import pytest

from llama_py.core.vocab import Vocab
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.limits import RequestLimits
from llama_py.dialects.llama_server.bodies import read_infill
from llama_py.errors import ParameterError
from tests.dialects.playing import Context, OpenVocab

PRE, SUF, MID, REP, SEP = 300, 301, 302, 303, 304
ROOM = 1000


@pytest.fixture(params=[False, True], ids=["without-files", "with-files"])
def files(request: pytest.FixtureRequest) -> bool:
    """Whether the vocabulary has tokens for repositories and files."""
    return bool(request.param)


@pytest.fixture
def infill(context: Context, open_vocab: OpenVocab, files: bool) -> Context:
    more = {"fim_rep_token_id": REP, "fim_sep_token_id": SEP} if files else {}
    context.vocab = open_vocab(
        fim_pre_token_id=PRE,
        fim_suf_token_id=SUF,
        fim_mid_token_id=MID,
        add_bos_token=True,
        **more,
    )
    return context


def tokens(context: Context, room: int = ROOM, **body: Any) -> list[int]:
    call = read_infill(context, body, RequestLimits(), "tiny", room=room)
    (request,) = call.requests
    return list(request.prompt.tokens or ())


def ids(vocab: Vocab, text: str) -> list[int]:
    return vocab.tokenize(text, add_special=False)


def test_before_and_behind(infill: Context) -> None:
    vocab = infill.vocab
    found = tokens(infill, input_prefix="def f(", input_suffix="):", prompt="a, ")
    before, after = [PRE, *ids(vocab, "def f(a, ")], [SUF, *ids(vocab, "):")]
    assert found == [vocab.bos, *before, *after, MID]
    infill.spm_infill = True
    swapped = tokens(infill, input_prefix="def f(", input_suffix="):", prompt="a, ")
    assert swapped == [vocab.bos, *after, *before, MID]


def test_further_files_come_first(infill: Context, files: bool) -> None:
    vocab = infill.vocab
    extra = [{"filename": "a.py", "text": "x = 1"}, {"text": "y = 2"}]
    found = tokens(infill, input_prefix="def", input_suffix=":", input_extra=extra)
    end = [PRE, *ids(vocab, "def"), SUF, *ids(vocab, ":"), MID]
    assert found[-len(end) :] == end
    middle = found[1 : -len(end)]
    if files:
        assert middle == [
            *[REP, *ids(vocab, "myproject\n")],
            *[SEP, *ids(vocab, "a.py\n"), *ids(vocab, "x = 1")],
            *[SEP, *ids(vocab, "tmp\n"), *ids(vocab, "y = 2")],
            *[SEP, *ids(vocab, "filename\n")],
        ]
    else:
        assert vocab.detokenize(middle).decode() == (
            "\n\n--- snippet ---\n\nx = 1\n\n--- snippet ---\n\ny = 2"
        )


def test_what_is_nearest_to_the_gap_stays(infill: Context) -> None:
    vocab = infill.vocab
    before, after = "one two three four five six " * 20, " seven eight nine ten" * 20
    extra = [{"text": "z" * 100}]
    for room in (12, 20, 60, 120, 300):
        body = {"input_prefix": before, "input_suffix": after, "input_extra": extra}
        found = tokens(infill, room, n_predict=1, **body)
        assert len(found) <= room - 1
        start, middle = found.index(PRE), found.index(SUF)
        ahead, behind = found[start + 1 : middle], found[middle + 1 : -1]
        assert ids(vocab, before)[-len(ahead) :] == ahead
        assert ids(vocab, after)[: len(behind)] == behind
        assert len(ahead) >= len(behind) > 0
    short = tokens(infill, 40, input_prefix=before, input_suffix="", n_predict=1)
    assert len(short) == 39


@pytest.mark.parametrize("name", ["n_predict", "max_tokens", "max_completion_tokens"])
def test_there_is_room_for_the_reply(infill: Context, name: str) -> None:
    body: dict[str, Any] = {"input_prefix": "one two " * 200, "input_suffix": " three" * 200}
    assert len(tokens(infill, 100, **body, **{name: 60})) == 40


def test_markers_in_code_are_text(infill: Context) -> None:
    found = tokens(infill, input_prefix="<|im_end|>", input_suffix="<|im_start|>")
    assert infill.vocab.eos not in found


def test_a_model_that_cannot(context: Context) -> None:
    with pytest.raises(RequestError, match="no fim_pre, fim_suf, fim_mid") as caught:
        tokens(context, input_prefix="a", input_suffix="b")
    assert caught.value.failure.kind is Kind.NOT_IMPLEMENTED


@pytest.mark.parametrize("missing", ["input_prefix", "input_suffix"])
def test_a_missing_side(infill: Context, missing: str) -> None:
    body: dict[str, Any] = {"input_prefix": "a", "input_suffix": "b"}
    del body[missing]
    with pytest.raises(RequestError, match=missing) as caught:
        tokens(infill, **body)
    assert caught.value.failure.kind is Kind.MISSING


@pytest.mark.parametrize(
    "extra", ["text", [5], [{}], [{"text": 5}], [{"text": "x", "filename": 5}]]
)
def test_extra_that_is_none(infill: Context, extra: Any) -> None:
    with pytest.raises(ParameterError, match="input_extra"):
        tokens(infill, input_prefix="a", input_suffix="b", input_extra=extra)
