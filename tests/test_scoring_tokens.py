"""What exactly is scored: the tokens of a continuation behind its prefix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_py import demo_model_path
from llama_py.api.scoring.tokens import Prefix, read_continuations, read_prefix
from llama_py.core.model import Model
from llama_py.core.vocab import Vocab
from llama_py.errors import ParameterError
from llama_py.params import ModelParams
from tests.memory.sentencepiece import write_sentencepiece
from tests.models import tiny_model


@pytest.fixture(scope="module")
def vocabs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Vocab]]:
    """Byte-level BPE twice, and SentencePiece, which adds a space and a BOS."""
    params = ModelParams(vocab_only=True)
    path = write_sentencepiece(tmp_path_factory.mktemp("vocab") / "spm.gguf")
    with (
        Model(tiny_model("full"), params) as tiny,
        Model(demo_model_path(), params) as demo,
        Model(path, params) as spm,
    ):
        yield [tiny.vocab, demo.vocab, spm.vocab]


def whole(vocab: Vocab, text: str) -> tuple[int, ...]:
    return tuple(vocab.tokenize(text.encode(), add_special=True, parse_special=True))


def split(vocab: Vocab, prefix: Any, *continuations: Any) -> tuple[Any, list[tuple[int, ...]]]:
    begun, given = read_continuations(vocab, read_prefix(vocab, prefix), continuations)
    return begun.tokens, given.tokens


WORDS = st.sampled_from(
    ["The answer is", " yes", "yes", " ", "  ", "\n", "\n\n", "no", " quick brown", "42", "é", "漢",
     "<|im_end|>", "<|im_start|>user\n", "----", " fox.", "t", "he"]
)  # fmt: skip
TEXT = st.lists(WORDS, max_size=8).map("".join)


@given(st.lists(WORDS, min_size=2, max_size=8).map("".join), st.lists(TEXT, max_size=4))
def test_prefix_and_continuation_together_are_the_tokens_of_the_text(
    vocabs: list[Vocab], prefix: str, continuations: list[str]
) -> None:
    for vocab in vocabs:
        begun, given = split(vocab, prefix, *continuations)
        assert len(given) == len(continuations)
        for text, tokens in zip(continuations, given, strict=True):
            expected = whole(vocab, prefix + text)
            if expected[0] == whole(vocab, prefix)[0]:  # else nothing is left to begin with
                assert begun + tokens == expected


def test_behind_a_long_prefix_they_are_too(vocabs: list[Vocab]) -> None:
    prefix = "The quick brown fox é漢 writes a letter to you, 42 times. " * 60 + "The answer is "
    for vocab in vocabs:
        for text in ("yes", " yes", "42", "<|im_end|>", "\n"):
            begun, (tokens,) = split(vocab, prefix, text)
            assert begun + tokens == whole(vocab, prefix + text)


def test_where_one_melts_into_the_prefix_all_are_scored_from_there(vocabs: list[Vocab]) -> None:
    vocab = vocabs[0]
    prefix = "The quick brown "
    alone = whole(vocab, prefix)
    begun, (fox, digit, nothing) = split(vocab, prefix, "fox", "4", "")
    assert begun == alone[:-1]
    assert fox == whole(vocab, "The quick brown fox")[len(begun) :]
    assert digit == (*alone[-1:], *vocab.tokenize("4", add_special=False))
    assert nothing == alone[-1:]
    # Alone, a continuation that does not melt leaves the prefix as it is.
    assert split(vocab, prefix, "4") == (alone, [digit[1:]])


def test_tokens_are_taken_as_they_are(vocabs: list[Vocab]) -> None:
    vocab = vocabs[0]
    prefix = whole(vocab, "The quick brown ")
    ids = tuple(vocab.tokenize("fox", add_special=False))
    assert split(vocab, list(prefix), ids, "fox") == (prefix, [ids, ids])
    assert split(vocab, "The quick brown ", ids) == (prefix, [ids])


def test_an_empty_prefix_is_the_beginning_of_a_text(vocabs: list[Vocab]) -> None:
    tiny, _, spm = vocabs
    for prefix in ("", list[int]()):
        assert split(tiny, prefix, "yes") == ((tiny.bos,), [whole(tiny, "yes")])
        assert split(spm, prefix, "the quick") == ((spm.bos,), [whole(spm, "the quick")[1:]])


def test_an_empty_prefix_needs_a_beginning() -> None:
    with Model(tiny_model("full"), ModelParams(vocab_only=True)) as model:
        model.vocab.bos = -1
        with pytest.raises(ParameterError, match="prefix is empty, and this model has no BOS"):
            read_prefix(model.vocab, "")


def test_the_text_of_tokens_is_what_they_spell(vocabs: list[Vocab]) -> None:
    vocab = vocabs[0]
    prefix = Prefix(whole(vocab, "The"))
    given = [vocab.tokenize(" fox", add_special=False), "é", [vocab.eos]]
    _, found = read_continuations(vocab, prefix, given)
    assert found.texts == [" fox", "é", "<|im_end|>"]


@pytest.mark.parametrize(
    ("prefix", "continuations", "message"),
    [
        (b"The", ["a"], "prefix must be a text, token ids or messages"),
        (None, ["a"], "prefix must be a text"),
        (["a"], ["a"], "prefix must be a text"),
        ([True], ["a"], "prefix must be a text"),
        ([99999], ["a"], "prefix: token=99999 is out of range"),
        ("The", "yes", "continuations must be a list"),
        ("The", None, "continuations must be a list"),
        ("The", [1, 2], r"continuations\[0\] must be a text or token ids, not 1"),
        ("The", ["a", b"b"], r"continuations\[1\] must be a text or token ids"),
        ("The", ["a", None], r"continuations\[1\] must be"),
        ("The", ["a", [1, -1]], r"continuations\[1\]: token=-1 is out of range"),
    ],
)
def test_what_is_no_text_is_named(
    vocabs: list[Vocab], prefix: Any, continuations: Any, message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        read_continuations(vocabs[0], read_prefix(vocabs[0], prefix), continuations)
