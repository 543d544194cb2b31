"""Tokens spell exactly the text that they were made of, whatever is in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_py import demo_model_path
from llama_py.core.model import Model
from llama_py.core.vocab import Vocab
from llama_py.errors import ClosedError, SymbolNotFoundError, TokenizationError
from llama_py.params import ModelParams
from tests.models import tiny_model, tiny_vocab

SPECIAL = "<|im_start|>"


@pytest.fixture(scope="module")
def tiny() -> Iterator[Vocab]:
    with Model(tiny_model("full"), ModelParams(vocab_only=True)) as model:
        yield model.vocab


@pytest.fixture(scope="module")
def demo() -> Iterator[Vocab]:
    with Model(demo_model_path(), ModelParams(vocab_only=True)) as model:
        yield model.vocab


@pytest.fixture(params=["tiny", "demo"], scope="module")
def vocab(request: pytest.FixtureRequest) -> Vocab:
    chosen: Vocab = request.getfixturevalue(request.param)
    return chosen


def spelled(raw: bytes, vocab: Vocab) -> bytes:
    tokens = vocab.tokenize(raw, add_special=False)
    return b"".join(vocab.token_to_piece(token) for token in tokens)


# -- pieces ------------------------------------------------------------------------------------


def test_a_piece_longer_than_32_bytes(tiny: Vocab) -> None:
    (token,) = tiny.tokenize("-" * 64, add_special=False)
    assert tiny.piece(token) == b"-" * 64
    assert tiny.plain_piece(token) == b"-" * 64
    assert tiny.detokenize([token, token]) == b"-" * 128


def test_a_piece_with_nul(tiny: Vocab) -> None:
    assert spelled(b"a\0#b\0\0c", tiny) == b"a\0#b\0\0c"
    with_nul = [t for t in range(tiny.n_tokens) if b"\0" in tiny.piece(t)]
    assert {tiny.piece(t) for t in with_nul} == {b"\0", b"\0\0", b"\0#"}
    assert b"\0#" in [tiny.piece(t) for t in tiny.tokenize(b"\0#", add_special=False)]


@pytest.mark.parametrize("text", ["\U0001f600", "\u4e16\u754c", "caf\u00e9 \u00e9\u00e9", "\u00e9"])
def test_characters_split_over_tokens(tiny: Vocab, text: str) -> None:
    tokens = tiny.tokenize(text, add_special=False)
    assert tiny.detokenize(tokens).decode() == text


def test_half_a_character_keeps_its_bytes(tiny: Vocab) -> None:
    first, second = tiny.tokenize("\U0001f600", add_special=False)
    assert (tiny.piece(first), tiny.piece(second)) == (b"\xf0\x9f\x98", b"\x80")


def test_every_piece_is_the_vocabularys(tiny: Vocab) -> None:
    made = tiny_vocab()
    alphabet = {text: bytes([byte]) for byte, text in enumerate(made.tokens[:256])}
    for token, text in enumerate(made.tokens):
        special = token >= made.first_special
        expected = text.encode() if special else b"".join(alphabet[c] for c in text)
        assert tiny.piece(token) == expected


def test_special_tokens_have_text_only_when_asked(vocab: Vocab) -> None:
    (token,) = vocab.tokenize(SPECIAL, add_special=False, parse_special=True)
    assert vocab.is_control(token)
    assert vocab.is_special(token)
    assert vocab.piece(token) == vocab.token_to_piece(token) == SPECIAL.encode()
    assert vocab.plain_piece(token) == vocab.token_to_piece(token, special=False) == b""
    assert vocab.detokenize([token]) == b""
    assert vocab.detokenize([token], special=True) == SPECIAL.encode()


def test_special_text_is_plain_text_unless_parsed(vocab: Vocab) -> None:
    tokens = vocab.tokenize(SPECIAL, add_special=False)
    assert len(tokens) > 1
    assert not any(vocab.is_control(token) for token in tokens)
    assert vocab.detokenize(tokens) == SPECIAL.encode()


# -- round trips -------------------------------------------------------------------------------

#: What templates and replies are made of, with what tokenizers stumble over.
TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from(
            (
                *("  ", "\n\n", "\r\n", "\t", "the ", "<|im_end|>", "<think>", "1234567", "don't"),
                *(
                    "\0",
                    "\U0001f600",
                    "\u4e16",
                    "\u00e9",
                    "e\u0301",
                    "---------",
                    "\u200d",
                    "\ufeff",
                ),
            )
        ),
        max_size=20,
    ).map("".join),
)


@given(text=TEXTS, parse=st.booleans())
def test_detokenizing_gives_the_text_back(tiny: Vocab, demo: Vocab, text: str, parse: bool) -> None:
    for vocab in (tiny, demo):
        tokens = vocab.tokenize(text, add_special=False, parse_special=parse)
        assert vocab.detokenize(tokens, special=True).decode() == text
        assert all(0 <= token < vocab.n_tokens for token in tokens)


@given(text=TEXTS)
def test_bytes_and_text_are_tokenized_alike(demo: Vocab, text: str) -> None:
    assert demo.tokenize(text) == demo.tokenize(text.encode())


def test_a_long_text(vocab: Vocab) -> None:
    text = "The quick brown fox, again and again. " * 2000
    assert vocab.detokenize(vocab.tokenize(text, add_special=False)).decode() == text
    assert vocab.tokenize("", add_special=False) == []


def test_a_lone_surrogate_does_not_end_the_process(vocab: Vocab) -> None:
    tokens = vocab.tokenize("a\ud800b", add_special=False)
    assert vocab.detokenize(tokens) == "a\ud800b".encode("utf-8", "surrogatepass")


# -- facts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"\xf4\x90\x80\x80", b"a\xf5\x80\x80\x80", b"\xf7\xab\xba\x95"])
def test_bytes_above_unicode_do_not_end_the_process(vocab: Vocab, data: bytes) -> None:
    with pytest.raises(TokenizationError, match="not a character of Unicode"):
        vocab.tokenize(data)


@given(st.binary(max_size=40))
def test_any_other_bytes_can_be_tokenized(tiny: Vocab, demo: Vocab, data: bytes) -> None:
    for vocab in (tiny, demo):
        try:
            vocab.tokenize(data)
        except TokenizationError:
            assert any(byte >= 0xF4 for byte in data)


def test_special_ids(tiny: Vocab) -> None:
    made = tiny_vocab()
    assert tiny.n_tokens == len(made.tokens)
    assert tiny.bos == tiny.pad == made.id("<|endoftext|>")
    assert tiny.eos == tiny.eot == made.id("<|im_end|>")
    assert tiny.nl == made.tokens.index("\u010a")
    assert tiny.fim_pre == tiny.fim_suf == tiny.fim_mid == -1
    assert not tiny.add_bos


def test_end_of_generation(tiny: Vocab) -> None:
    assert tiny.is_eog(tiny.eos)
    assert not tiny.is_eog(5)
    assert tiny.eos in tiny.eog_tokens()
    assert all(tiny.is_eog(token) for token in tiny.eog_tokens())
    assert not tiny.is_special(5)


@pytest.mark.parametrize("token", [-1, 2**31 - 1, 2**40, 10**6])
@pytest.mark.parametrize(
    "name",
    ["piece", "plain_piece", "token_to_piece", "is_eog", "is_control", "is_special"],
)
def test_ids_outside_of_the_vocabulary_are_refused(tiny: Vocab, name: str, token: int) -> None:
    with pytest.raises(TokenizationError, match=f"{token} is outside of the vocabulary"):
        getattr(tiny, name)(token)


def test_nothing_is_read_from_a_closed_model() -> None:
    model = Model(tiny_model("full"), ModelParams(vocab_only=True))
    vocab = model.vocab
    model.close()
    for call in (lambda: vocab.tokenize("a"), lambda: vocab.piece(3), lambda: vocab.is_eog(3)):
        with pytest.raises(ClosedError, match="closed"):
            call()


def test_a_library_without_the_function_knows_the_same_special_texts(
    tiny: Vocab, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Old:
        def __getattr__(self, name: str) -> object:
            raise SymbolNotFoundError(name)

    found = tiny._special_attributes()
    assert SPECIAL.encode() in {tiny.piece(token) for token, _ in found}
    monkeypatch.setattr("llama_py.core.vocab.chat_h", Old())
    assert tiny._special_attributes() == found
