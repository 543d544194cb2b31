"""Fill in the middle: the order of the parts, with and without BOS."""

from __future__ import annotations

import pytest

from llama_py.core.vocab import Vocab
from llama_py.dialects.openai.completions import parse_completion
from tests.dialects.playing import Context, OpenVocab

PRE, SUF, MID = 300, 301, 302


@pytest.fixture(params=[False, True], ids=["without-bos", "with-bos"])
def infill(request: pytest.FixtureRequest, context: Context, open_vocab: OpenVocab) -> Context:
    context.vocab = open_vocab(
        fim_pre_token_id=PRE,
        fim_suf_token_id=SUF,
        fim_mid_token_id=MID,
        add_bos_token=request.param,
    )
    return context


def ids(vocab: Vocab, text: str) -> list[int]:
    return vocab.tokenize(text, add_special=False)


def start(vocab: Vocab) -> list[int]:
    return [vocab.bos] if vocab.add_bos else []


def test_prefix_suffix_middle(infill: Context) -> None:
    vocab = infill.vocab
    prompt = parse_completion(infill, "def f(", suffix="):").requests[0].prompt
    before, after = [PRE, *ids(vocab, "def f(")], [SUF, *ids(vocab, "):")]
    assert prompt.tokens == [*start(vocab), *before, *after, MID]
    assert prompt.text is None


def test_suffix_prefix_middle(infill: Context) -> None:
    infill.spm_infill = True
    vocab = infill.vocab
    tokens = parse_completion(infill, "def f(", suffix="):").requests[0].prompt.tokens
    before, after = [PRE, *ids(vocab, "def f(")], [SUF, *ids(vocab, "):")]
    assert tokens == [*start(vocab), *after, *before, MID]


def test_special_tokens_in_code_are_text(infill: Context) -> None:
    tokens = parse_completion(infill, "x", suffix="<|im_end|>").requests[0].prompt.tokens
    assert tokens is not None
    assert infill.vocab.eos not in tokens


def test_tokens_and_an_empty_suffix(infill: Context) -> None:
    tokens = parse_completion(infill, [5, 6], suffix="").requests[0].prompt.tokens
    assert tokens == [*start(infill.vocab), PRE, 5, 6, SUF, MID]


def test_the_reply_is_the_middle(infill: Context) -> None:
    call = parse_completion(infill, "def f(", suffix="):", echo=True)
    assert call.echoes == ["def f("]
