"""Cached tokens are kept as far as their text goes, and the rest is tokenized as if at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llama_py import demo_model_path
from llama_py.core.model import Model
from llama_py.core.vocab import Vocab
from llama_py.memory.text import align, safe_cut, tokenize_after
from llama_py.params import ModelParams
from tests.memory.sentencepiece import write_sentencepiece
from tests.models import tiny_model


@pytest.fixture(scope="module")
def vocabs() -> Iterator[list[Vocab]]:
    params = ModelParams(vocab_only=True)
    with Model(tiny_model("full"), params) as tiny, Model(demo_model_path(), params) as demo:
        yield [tiny.vocab, demo.vocab]


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocab]:
    path = write_sentencepiece(tmp_path_factory.mktemp("vocab") / "spm.gguf")
    with Model(path, ModelParams(vocab_only=True)) as model:
        yield model.vocab


def read(vocab: Vocab, text: bytes) -> list[int]:
    return vocab.tokenize(text, add_special=False, parse_special=True)


def resume(vocab: Vocab, cached: list[int], text: bytes) -> tuple[int, list[int]]:
    """How many cached tokens are kept, and the tokens of the whole text."""
    spelled = vocab.detokenize(cached, special=True)
    offsets = align(vocab, cached, spelled)
    assert offsets is not None
    kept = safe_cut(vocab, cached, offsets, text)
    rest = tokenize_after(vocab, text, int(offsets[kept]), add_special=False)
    return kept, [*cached[:kept], *rest]


#: Pieces of templates and of replies.
PARTS = st.one_of(
    st.sampled_from(
        [
            *("<|im_start|>user\n", "<|im_end|>\n", "<|im_start|>assistant\n", "<think>", "\n\n"),
            *("The quick brown", " fox", " ", "  ", "don't", "12345", "--------", "hello world"),
            *("\U0001f600", "\u4e16\u754c", "caf\u00e9", "<", "<|im_", "end|>"),
        ]
    ),
    st.text(max_size=6),
)
TEXT = st.lists(PARTS, max_size=14).map("".join)
CUT = st.integers(0, 10_000)


@given(TEXT)
def test_align_finds_every_token_in_its_text(vocabs: list[Vocab], text: str) -> None:
    raw = text.encode()
    for vocab in vocabs:
        tokens = read(vocab, raw)
        offsets = align(vocab, tokens, raw)
        assert offsets is not None
        assert offsets.dtype == np.int64
        assert offsets.tolist() == [
            len(vocab.detokenize(tokens[:count], special=True)) for count in range(len(tokens) + 1)
        ]


def test_align_begins_where_it_is_told(vocabs: list[Vocab]) -> None:
    tokens = read(vocabs[0], b"the fox")
    offsets = align(vocabs[0], tokens, b"xx the fox"[1:], start=2)
    assert offsets is not None
    assert (offsets[0], offsets[-1]) == (2, 9)


def test_align_refuses_other_text(vocabs: list[Vocab]) -> None:
    tokens = read(vocabs[0], b"the fox")
    for other in (b"the fax", b"the fo", b"the foxes", b""):
        assert align(vocabs[0], tokens, other) is None


def test_an_added_token_has_no_bytes(vocabs: list[Vocab]) -> None:
    vocab = vocabs[0]
    offsets = align(vocab, [vocab.bos, *read(vocab, b"the")], b"the")
    assert offsets is not None
    assert offsets[:2].tolist() == [0, 0]


@given(TEXT, CUT, TEXT)
def test_the_same_text_is_spelled_and_no_character_is_cut(
    vocabs: list[Vocab], text: str, cut: int, more: str
) -> None:
    """Cached: the tokenizer's tokens of a beginning. Then the text goes on in any way."""
    for vocab in vocabs:
        raw = text.encode()
        cached = read(vocab, raw[: cut % (len(raw) + 1)])
        whole = vocab.detokenize(cached, special=True) + more.encode()
        kept, tokens = resume(vocab, cached, whole)
        assert vocab.detokenize(tokens, special=True) == whole
        place = len(vocab.detokenize(cached[:kept], special=True))
        assert place == len(whole) or kept == len(cached) or whole[place] & 0xC0 != 0x80


@given(st.lists(st.integers(0, 500), max_size=20), TEXT)
def test_sampled_tokens_that_do_not_survive_tokenizing_are_kept_by_their_text(
    vocabs: list[Vocab], sampled: list[int], more: str
) -> None:
    """Any tokens at all, closed by a special one, as a reply is closed by the template."""
    for vocab in vocabs:
        (end,) = read(vocab, b"<|im_end|>")
        cached = [*(t for t in sampled if t < vocab.n_tokens), end]
        whole = vocab.detokenize(cached, special=True) + more.encode()
        kept, tokens = resume(vocab, cached, whole)
        assert kept == len(cached)
        assert tokens == [*cached, *read(vocab, more.encode())]


@given(st.lists(PARTS, max_size=10), st.lists(PARTS, max_size=6))
@example(["<|im_start|>user\n", "a"], [" ", " b"])
def test_behind_a_special_token_the_result_is_that_of_tokenizing_the_whole(
    vocabs: list[Vocab], before: list[str], after: list[str]
) -> None:
    for vocab in vocabs:
        prefix = ("".join(before) + "<|im_end|>").encode()
        cached = read(vocab, prefix)
        whole = prefix + "".join(after).encode()
        kept, tokens = resume(vocab, cached, whole)
        assert kept == len(cached)
        assert tokens == read(vocab, whole)


WORDS = st.lists(
    st.sampled_from(["the ", "quick", " fox", "s", ", ", "12", "345", "\n", "don", "'t", " "]),
    max_size=12,
).map("".join)


@given(WORDS, WORDS)
@example("  ", "12")
def test_the_rest_is_what_it_would_be_in_the_whole(
    vocabs: list[Vocab], text: str, more: str
) -> None:
    """A cut in ordinary text is where the whole is split too: "fox" + "es" is not two words.

    The tokens before it stay, although the whole may have others there (two single spaces).
    """
    for vocab in vocabs:
        prefix = ("<|im_start|>" + text).encode()
        whole = prefix + more.encode()
        kept, tokens = resume(vocab, read(vocab, prefix), whole)
        rest = tokens[kept:]
        assert rest == read(vocab, whole)[-len(rest) :] or not rest


def test_a_word_that_goes_on_is_given_back(vocabs: list[Vocab]) -> None:
    vocab = vocabs[0]
    cached = read(vocab, b"<|im_start|>the qu")
    kept, tokens = resume(vocab, cached, b"<|im_start|>the quick")
    assert kept < len(cached)
    assert tokens == read(vocab, b"<|im_start|>the quick")


def test_half_a_character_is_given_back(vocabs: list[Vocab]) -> None:
    vocab = vocabs[0]
    text = "<|im_start|>\U0001f600".encode()
    cached = read(vocab, text)[:-1]  # three of four bytes
    kept, tokens = resume(vocab, cached, text)
    assert kept == 1
    assert tokens == read(vocab, text)


def test_nothing_cached_nothing_kept(vocabs: list[Vocab]) -> None:
    assert resume(vocabs[0], [], b"the fox") == (0, read(vocabs[0], b"the fox"))


def test_bos_is_added_at_the_beginning_only(vocabs: list[Vocab]) -> None:
    class WithBos:
        def tokenize(
            self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
        ) -> list[int]:
            return [1] * add_special + [2] * len(text)

        def piece(self, token: int) -> bytes:
            return b"x"

        def is_special(self, token: int) -> bool:
            return False

    assert tokenize_after(WithBos(), b"abc", 0, add_special=True) == [1, 2, 2, 2]
    assert tokenize_after(WithBos(), b"abc", 1, add_special=True) == [2, 2]
    assert tokenize_after(WithBos(), b"abc", 0, add_special=False) == [2, 2, 2]


@given(TEXT, TEXT, st.booleans())
@example("User: hi\nAssistant:", " fine", True)
@example("def f(x):\n    return", "(x)", True)
@example("hel", "lo", True)
@example("<|im_start|>user\na<|im_end|>", "  b", False)
def test_sentencepiece_puts_no_space_where_the_text_was_cut(
    sentencepiece: Vocab, before: str, more: str, bos: bool
) -> None:
    """It puts one before every text, and so the rest must not be tokenized alone."""
    cached = sentencepiece.tokenize(before, add_special=bos, parse_special=True)
    offsets = align(sentencepiece, cached, before.encode())
    assert offsets is not None
    whole = (before + more).encode()
    kept = safe_cut(sentencepiece, cached, offsets, whole)
    rest = tokenize_after(sentencepiece, whole, int(offsets[kept]), add_special=bos)
    ends = align(sentencepiece, rest, whole, int(offsets[kept]))
    assert ends is not None
    assert [*cached[:kept], *rest] == sentencepiece.tokenize(
        whole, add_special=bos, parse_special=True
    )
