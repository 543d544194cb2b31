"""``Vocab``: text to tokens and back, with the exact bytes of every token."""

from __future__ import annotations

import ctypes
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from llama_py._native import chat_h
from llama_py._native import llama_h as C
from llama_py.core.handle import Handle
from llama_py.errors import ParameterTypeError, SymbolNotFoundError, TokenizationError, shown
from llama_py.tenants import Remembered

__all__ = ["Vocab"]

#: Well-formed bytes of a number above U+10FFFF: llama.cpp aborts the process over them.
_NO_CHARACTER = re.compile(rb"(?:\xf4[\x90-\xbf]|[\xf5-\xf7][\x80-\xbf])[\x80-\xbf]{2}")
#: What these begin with. To look for single bytes first takes a fiftieth of the time.
_NO_CHARACTER_BEGINS = (b"\xf4", b"\xf5", b"\xf6", b"\xf7")


#: Samplers that are remembered to be cloned.
_MOST_PROTOTYPES = 8
#: Texts of special tokens that are remembered; templates have a few of them.
_MOST_NAMED = 1024
#: Tokens that llama.cpp's tokenizer takes out of a text before anything else, and those among
#: them that it takes only where special tokens are to be parsed.
_PARSED = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
_SPECIAL = _PARSED | C.LLAMA_TOKEN_ATTR_USER_DEFINED
#: ``llama_vocab_get_attr`` for calls in great numbers.
_ATTRIBUTE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int32)


class Vocab(Handle[C.llama_vocab_p]):
    """The vocabulary of a model, whose weights stay in memory as long as it is used.

    Attributes:
        n_tokens: number of tokens.
        n_ctx_train: the context length that the model was trained with.
        bos, eos, eot, nl, pad, sep: special token ids, -1 where the vocabulary has none.
        fim_pre, fim_suf, fim_mid, fim_rep, fim_sep: infill tokens, -1 where there are none.
        add_bos: whether a prompt begins with BOS.
    """

    def __init__(self, model: Handle[C.llama_model_p]) -> None:
        with model.in_use() as parent:
            pointer = C.llama_model_get_vocab(parent)
            super().__init__(pointer, _nothing, model)
            self.n_ctx_train = int(C.llama_model_n_ctx_train(parent))
        self.n_tokens: int = C.llama_vocab_n_tokens(pointer)
        self.kind: int = C.llama_vocab_type(pointer)
        self.bos: int = C.llama_vocab_bos(pointer)
        self.eos: int = C.llama_vocab_eos(pointer)
        self.eot: int = C.llama_vocab_eot(pointer)
        self.nl: int = C.llama_vocab_nl(pointer)
        self.pad: int = C.llama_vocab_pad(pointer)
        self.sep: int = C.llama_vocab_sep(pointer)
        self.fim_pre: int = C.llama_vocab_fim_pre(pointer)
        self.fim_suf: int = C.llama_vocab_fim_suf(pointer)
        self.fim_mid: int = C.llama_vocab_fim_mid(pointer)
        self.fim_rep: int = C.llama_vocab_fim_rep(pointer)
        self.fim_sep: int = C.llama_vocab_fim_sep(pointer)
        self.add_bos: bool = C.llama_vocab_get_add_bos(pointer)
        self.add_eos: bool = C.llama_vocab_get_add_eos(pointer)
        self.add_sep: bool = C.llama_vocab_get_add_sep(pointer)
        self._prototypes: Remembered[Hashable, Handle[C.llama_sampler_p]]
        self._prototypes = Remembered(_MOST_PROTOTYPES)
        self._pieces: dict[int, bytes] = {}
        self._plain_pieces: dict[int, bytes] = {}
        self._eog: dict[int, bool] = {}
        #: None: ``special_texts`` was not asked yet.
        self._special_tokens: frozenset[int] | None = None
        self._named: dict[str, int | None] = {}
        self._special_texts: dict[bytes, bool] | None = None
        self._longest_piece: int | None = None

    def prototype(
        self, key: Hashable, make: Callable[[], C.llama_sampler_p]
    ) -> Handle[C.llama_sampler_p]:
        """A sampler that took long to be made of the vocabulary, to be cloned. Any thread may ask.

        Args:
            key: what it depends on.
            make: makes it, if it is not remembered.
        """
        known = self._prototypes.get(key)
        if known is not None and not known.closed:
            return known
        made = Handle(make(), C.llama_sampler_free, self)  # others need not wait for that
        self._prototypes.put(key, made)
        return made

    def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of ``text``.

        Args:
            add_special: add BOS / EOS as the model was trained with.
            parse_special: read texts such as ``<|im_end|>`` as the special tokens they name.

        Raises:
            TokenizationError: the vocabulary cannot tokenize the text.
            ParameterTypeError: it is not text.
        """
        if not isinstance(text, (str, bytes, bytearray, memoryview)):  # bytes(10**9) is 1 GB
            raise ParameterTypeError(f"text must be a string or bytes, not {shown(text)}")
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
        if not isinstance(text, str) and any(byte in raw for byte in _NO_CHARACTER_BEGINS):
            found = _NO_CHARACTER.search(raw)
            if found:
                raise TokenizationError(
                    f"the bytes {found[0]!r} at {found.start()} are not a character of Unicode"
                )
        # One token a byte is the usual upper bound; if there are more, the call says how many.
        room = len(raw) + 8
        out = np.empty(room, np.int32)
        count = self._tokenize_into(raw, out, add_special, parse_special)
        if count < 0:
            out = np.empty(-count, np.int32)
            count = self._tokenize_into(raw, out, add_special, parse_special)
        if count < 0:
            raise TokenizationError(
                f"the vocabulary could not tokenize {raw[:40]!r}… ({len(raw)} bytes)"
            )
        tokens: list[int] = out[:count].tolist()
        return tokens

    def _tokenize_into(
        self, raw: bytes, out: np.ndarray, add_special: bool, parse_special: bool
    ) -> int:
        with self.in_use() as pointer:  # another thread may close the model meanwhile
            count: int = C.llama_tokenize(
                pointer, raw, len(raw), out.ctypes.data, len(out), add_special, parse_special
            )
        if count == -(2**31):
            raise TokenizationError(f"a text of {len(raw)} bytes has more than 2**31 tokens")
        return count

    def piece(self, token: int) -> bytes:
        """The exact bytes of a token, special tokens as their text (``b"<|im_end|>"``)."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token, True)
        return piece

    def plain_piece(self, token: int) -> bytes:
        """The bytes of a token in plain text: special tokens are empty."""
        piece = self._plain_pieces.get(token)
        if piece is None:
            piece = self._plain_pieces[token] = self._read_piece(token, False)
        return piece

    def token_to_piece(self, token: int, special: bool = True) -> bytes:
        """``piece`` or ``plain_piece``."""
        return self.piece(token) if special else self.plain_piece(token)

    def _read_piece(self, token: int, special: bool) -> bytes:
        self.check_tokens((token,))
        buffer = ctypes.create_string_buffer(64)
        with self.in_use() as pointer:
            count = C.llama_token_to_piece(pointer, token, buffer, 64, 0, special)
            if count < 0:
                buffer = ctypes.create_string_buffer(-count)
                count = C.llama_token_to_piece(pointer, token, buffer, -count, 0, special)
        return buffer.raw[: max(0, count)]

    def detokenize(self, tokens: Iterable[int], *, special: bool = False) -> bytes:
        """The bytes of several tokens, one after the other."""
        piece = self.piece if special else self.plain_piece
        return b"".join([piece(token) for token in tokens])

    def detokenize_prompt(self, tokens: Iterable[int], *, special: bool = False) -> bytes:
        """The text that tokens with BOS at their beginning were made of (see ``tokenize``).

        SentencePiece puts a space before a text, which goes again here: where the first token is
        BOS, and only there. Tokens from the middle of a text keep their space, and so does what
        follows the text of BOS with ``special``.
        """
        ids = self.token_list(tokens)
        text = self.detokenize(ids, special=special)
        begins = bool(ids) and ids[0] == self.bos
        return text[1:] if begins and text[:1] == b" " else text

    def is_eog(self, token: int) -> bool:
        """True if the token ends a reply."""
        known = self._eog.get(token)
        if known is None:
            self.check_tokens((token,))
            known = self._eog[token] = bool(C.llama_vocab_is_eog(self.pointer, token))
        return known

    def is_control(self, token: int) -> bool:
        """True if the token is a control token, which plain text never produces."""
        self.check_tokens((token,))
        return bool(C.llama_vocab_is_control(self.pointer, token))

    def is_special(self, token: int) -> bool:
        """True if the tokenizer always splits before and after this token."""
        if self._special_tokens is not None and 0 <= token < self.n_tokens:
            return token in self._special_tokens
        self.check_tokens((token,))
        return bool(C.llama_vocab_get_attr(self.pointer, token) & _SPECIAL)

    def special_token(self, text: str) -> int | None:
        """The token that ``text`` is where special tokens are parsed; None: it is several."""
        if text not in self._named:
            tokens = self.tokenize(text, add_special=False, parse_special=True)
            if len(self._named) >= _MOST_NAMED:
                self._named.clear()
            self._named[text] = tokens[0] if len(tokens) == 1 else None
        return self._named[text]

    def strips_right(self, token: int) -> bool:
        """True if the tokenizer drops white space behind this token (Phi-3)."""
        self.check_tokens((token,))
        return bool(C.llama_vocab_get_attr(self.pointer, token) & C.LLAMA_TOKEN_ATTR_RSTRIP)

    def special_texts(self) -> Mapping[bytes, bool]:
        """Texts that are read as one special token wherever they stand.

        True for those that are so even with ``parse_special=False`` (user-defined tokens). Without
        those that are white space only, which are ordinary text to everybody.
        """
        if self._special_texts is not None:
            return self._special_texts
        found: dict[bytes, bool] = {}
        special = self._special_attributes()
        self._special_tokens = frozenset([token for token, _ in special])
        buffer = ctypes.create_string_buffer(64)
        with self.in_use() as pointer:  # not piece by piece: a third of the time for thousands
            for token, _ in special:
                count = C.llama_token_to_piece(pointer, token, buffer, 64, 0, True)
                if count >= 0:  # else it is longer
                    self._pieces[token] = buffer.raw[:count]
        for token, attribute in special:
            if (piece := self.piece(token)).strip():
                always = not attribute & _PARSED
                found[piece] = found.get(piece, False) or always
        self._special_texts = found
        return found

    def _special_attributes(self) -> list[tuple[int, int]]:
        """The tokens that the tokenizer always splits at, with their attributes.

        In C, a tenth of a second less for 152K tokens.
        """
        attributes = np.empty(self.n_tokens, np.int32)
        with self.in_use() as pointer:
            try:
                fill: Any = chat_h.llama_py_vocab_attributes
            except SymbolNotFoundError:  # a library of an older build: one call for each token
                function: Any = C.llama_vocab_get_attr
                # It does not give the interpreter's lock away.
                one = _ATTRIBUTE(ctypes.cast(function, ctypes.c_void_p).value or 0)
                attribute_of = partial(one, ctypes.cast(pointer, ctypes.c_void_p).value)
                attributes = np.fromiter(map(attribute_of, range(self.n_tokens)), np.int32)
            else:
                fill(pointer, self.n_tokens, attributes.ctypes.data)
        special = np.flatnonzero(attributes & _SPECIAL)
        return [*zip(special.tolist(), attributes[special].tolist(), strict=True)]

    def longest_piece(self) -> int:
        """Bytes of the longest token."""
        if self._longest_piece is None:
            # A token's name, which is quick to get, is never shorter than its bytes.
            with self.in_use() as pointer:
                names = map(partial(C.llama_vocab_get_text, pointer), range(self.n_tokens))
                lengths = np.fromiter((len(name or b"") for name in names), np.int64, self.n_tokens)
            longest = 0
            for token in np.argsort(-lengths).tolist():
                if lengths[token] <= longest:
                    break
                longest = max(longest, len(self.piece(token)))
            self._longest_piece = longest
        return self._longest_piece

    def eog_tokens(self) -> list[int]:
        """Every token that ends a reply."""
        return [token for token in range(self.n_tokens) if self.is_eog(token)]

    def token_list(self, tokens: Iterable[int]) -> list[int]:
        """Tokens that a caller gave, as a list of ids.

        Raises:
            ParameterTypeError: they are not integers.
            TokenizationError: an id is not in the vocabulary.
        """
        try:
            ids = None if isinstance(tokens, (str, bytes)) else [*map(operator.index, tokens)]
        except TypeError:
            ids = None
        if ids is None:
            raise ParameterTypeError(f"tokens must be a list of token ids, not {shown(tokens)}")
        self.check_tokens(ids)
        return ids

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise ``TokenizationError`` unless every id is in the vocabulary."""
        for token in tokens:
            if not 0 <= token < self.n_tokens:
                raise TokenizationError(
                    f"token id {shown(token)} is outside of the vocabulary "
                    f"(0 to {self.n_tokens - 1})"
                )


def _nothing(_pointer: C.llama_vocab_p) -> None:
    """A vocabulary is a part of its model, and freed with it."""
