"""``GrammarSampler``: llama.cpp's grammar sampler, which cannot be given what would harm it.

A grammar is checked before it is compiled (``gbnf_check``), and each step has a limit on its work
(``native/shim/llama_py_grammar.h``): an ambiguous grammar ends its own request, and not the
streams beside it.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from llama_py._native import chat_h
from llama_py._native import llama_h as C
from llama_py.core import logs
from llama_py.core.chat import take_text
from llama_py.core.grammar.gbnf_check import check_gbnf
from llama_py.core.handle import Handle
from llama_py.core.vocab import Vocab
from llama_py.errors import GrammarError
from llama_py.params import GrammarSpec

__all__ = ["CANDIDATE", "GrammarSampler", "spells"]

#: ``llama_token_data``.
CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
#: The work of one step: comparisons of a character, at least, and for each token of the vocabulary.
_LEAST_WORK = 6_000_000
_WORK_PER_TOKEN = 500
#: Characters of a trigger pattern.
_LONGEST_TRIGGER = 20_000


class GrammarSampler(Handle[C.llama_sampler_p]):
    """Asked first about the one token that was chosen.

    Masking the whole vocabulary costs milliseconds; most chosen tokens are allowed anyway.

    Args:
        vocab: the vocabulary.
        spec: the grammar.

    Raises:
        GrammarError: the grammar does not parse, or is more than the limits allow.
    """

    def __init__(self, vocab: Vocab, spec: GrammarSpec) -> None:
        _check(vocab, spec)
        with vocab.in_use():
            super().__init__(_compile(vocab, spec), C.llama_sampler_free, vocab)
        self._most = max(_LEAST_WORK, _WORK_PER_TOKEN * vocab.n_tokens)
        try:
            for token in _prefill_tokens(vocab, spec.prefill) if spec.prefill else ():
                if self.accept(token) is not None:
                    raise GrammarError(
                        f"the grammar does not begin with its prefill {spec.prefill!r}"
                    )
        except BaseException:
            self.close()
            raise

    def allows(self, token: int) -> bool:
        """Whether a token may be next."""
        one = C.llama_token_data(token, 1.0, 0.0)
        self._apply(C.llama_token_data_array(ctypes.pointer(one), 1, -1, False))
        return bool(one.logit != -np.inf)

    def mask(self, row: NDArray[np.float32]) -> None:
        """Set the logits of tokens that may not be next to ``-inf``. Shape ``(n_vocab,)``."""
        candidates = np.zeros(len(row), CANDIDATE)
        candidates["id"] = np.arange(len(row), dtype=np.int32)
        candidates["logit"] = row
        data = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(C.llama_token_data))
        self._apply(C.llama_token_data_array(data, len(row), -1, False))
        row[:] = candidates["logit"]

    def accept(self, token: int) -> str | None:
        """Advance past a token; None, or why it does not fit."""
        error = ctypes.POINTER(ctypes.c_char)()
        code = chat_h.llama_py_grammar_accept(self.pointer, token, self._most // 2, error)
        if code == chat_h.LLAMA_PY_GRAMMAR_OK:
            return None
        reason = take_text(error)
        if code == chat_h.LLAMA_PY_GRAMMAR_TOO_MUCH:
            raise _too_ambiguous(reason)
        return reason

    def _apply(self, array: C.llama_token_data_array) -> None:
        error = ctypes.POINTER(ctypes.c_char)()
        code = chat_h.llama_py_grammar_apply(self.pointer, array, self._most, error)
        if code != chat_h.LLAMA_PY_GRAMMAR_OK:
            raise _too_ambiguous(take_text(error))


def spells(vocab: Vocab, spec: GrammarSpec, text: str) -> bool:
    """Whether a text is one that the grammar describes, as a whole.

    Raises:
        GrammarError: the grammar does not parse, or is more than the limits allow.
    """
    ends = vocab.eog_tokens()
    sampler = GrammarSampler(vocab, spec)
    try:
        if any(sampler.accept(token) is not None for token in _prefill_tokens(vocab, text)):
            return False
        return not ends or sampler.allows(ends[0])
    finally:
        sampler.close()


def _too_ambiguous(reason: str) -> GrammarError:
    return GrammarError(
        f"the grammar is too ambiguous to go on: {reason}; let each text have one reading: no "
        "repetition of what may be empty or of a repetition, no alternatives that begin alike"
    )


def _check(vocab: Vocab, spec: GrammarSpec) -> None:
    """Raise for what llama.cpp takes without a word, prints about, or dies of."""
    for text, line in check_gbnf(spec.gbnf, spec.root):
        name = text[2:-2] if text.startswith("<[") else ""
        if name and int(name) >= vocab.n_tokens:
            raise GrammarError(
                f"the grammar, line {line}: token {text} is outside of the vocabulary "
                f"(0 to {vocab.n_tokens - 1})"
            )
        if not name and len(vocab.tokenize(text, add_special=False, parse_special=True)) != 1:
            raise GrammarError(
                f"the grammar, line {line}: {text} is not a token of this vocabulary"
            )
    for pattern in spec.trigger_patterns:
        problem = "it is too long, or has too many parentheses"
        # llama.cpp's regular expressions recurse.
        if len(pattern) <= _LONGEST_TRIGGER and pattern.count("(") <= _LONGEST_TRIGGER // 100:
            error = ctypes.POINTER(ctypes.c_char)()
            raw = pattern.encode("utf-8", "replace")
            if chat_h.llama_py_grammar_check_trigger(raw, error) == chat_h.LLAMA_PY_GRAMMAR_OK:
                continue
            problem = take_text(error)
        shown = pattern if len(pattern) < 80 else pattern[:79] + "…"
        raise GrammarError(f"the trigger pattern {shown!r} does not parse: {problem}")


def _prefill_tokens(vocab: Vocab, text: str) -> list[int]:
    """Tokens that spell exactly this text: SentencePiece would put a space before a plain word."""
    tokens = vocab.tokenize(text, add_special=False, parse_special=True)
    if vocab.detokenize(tokens, special=True) == text.encode():
        return tokens
    behind = vocab.tokenize("\n" + text, add_special=False, parse_special=True)
    for start in range(1, len(behind)):
        if vocab.detokenize(behind[start:], special=True) == text.encode():
            return behind[start:]
    return tokens


def _compile(vocab: Vocab, spec: GrammarSpec) -> C.llama_sampler_p:
    gbnf, root = spec.gbnf.encode(), spec.root.encode()
    with logs.ErrorLines() as lines:
        if spec.lazy:
            patterns = [pattern.encode() for pattern in spec.trigger_patterns]
            tokens = spec.trigger_tokens
            pointer = C.llama_sampler_init_grammar_lazy_patterns(
                vocab.pointer,
                gbnf,
                root,
                (ctypes.c_char_p * max(1, len(patterns)))(*patterns),
                len(patterns),
                (ctypes.c_int32 * max(1, len(tokens)))(*tokens),
                len(tokens),
            )
        else:
            pointer = C.llama_sampler_init_grammar(vocab.pointer, gbnf, root)
    if not pointer:
        reason = str(lines) or f"does it define {spec.root!r}?"
        raise GrammarError(f"the grammar does not parse: {reason}")
    return pointer
