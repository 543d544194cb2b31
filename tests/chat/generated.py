"""Replies that a grammar lets a model write: drawn at random, token by token, with an end in sight.

Every token that the grammar allows may be drawn. A text drawn at random hardly ever closes what it
has opened, so that the texts of the grammar itself (marks, names, values) are tried first, as the
tokenizer cuts them, and the more often the longer the reply is already.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from llama_py.chat.rendered import RenderedChat
from llama_py.core.grammar.sampler import GrammarSampler
from llama_py.core.model import Model
from llama_py.core.vocab import Vocab
from llama_py.params import ModelParams
from tests.chat.families import template_folder

__all__ = ["Reply", "Writer", "vocabulary"]

_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"|\[(?:[^\]\\]|\\.)*\]')
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))")
#: What ends something, in one family or another.
_END = re.compile(r"/|end|\|>$|>$")
_SHORT = {"n": "\n", "t": "\t", "r": "\r"}
_LONGEST = 3000


class Reply(NamedTuple):
    """What was written.

    Attributes:
        text: all of it.
        ended: it came to its end, which the grammar allowed.
    """

    text: str
    ended: bool


@contextmanager
def vocabulary(name: str = "ggml-vocab-qwen2.gguf") -> Iterator[Vocab]:
    """The tokens of a real model, without its weights."""
    with Model(template_folder().parent / name, ModelParams(vocab_only=True)) as model:
        yield model.vocab


class Writer:
    """Writes replies.

    Args:
        vocab: with its tokens.
        chance: where the choices come from.
    """

    def __init__(self, vocab: Vocab, chance: random.Random) -> None:
        self._vocab, self._chance = vocab, chance
        self._ends = vocab.eog_tokens()
        self._pieces = [vocab.piece(token) for token in range(vocab.n_tokens)]
        self._plain = [n for n, piece in enumerate(self._pieces) if piece]
        self._short = [n for n in self._plain if len(self._pieces[n]) == 1]
        # Asking for each of these costs less than a mask of all.
        self._letters = [n for n in self._short if self._pieces[n].isascii()]

    def write(self, rendered: RenderedChat, begin: str = "") -> Reply:
        """A reply.

        Args:
            begin: text with which it begins.
        """
        assert rendered.grammar is not None
        grammar = GrammarSampler(self._vocab, rendered.grammar)
        marks = self._marks(rendered)
        out = b""
        plan = self._tokens(begin)
        if rendered.grammar.lazy:
            for token in plan:
                grammar.accept(token)
            out, plan = begin.encode(), []
        try:
            for length in range(_LONGEST):
                token = self._next(grammar, marks, plan, length)
                if token in self._ends:
                    return Reply(out.decode("utf-8", "replace"), True)
                problem = grammar.accept(token)
                assert problem is None, problem
                out += self._pieces[token]
        finally:
            grammar.close()
        return Reply(out.decode("utf-8", "replace"), False)

    def _tokens(self, text: str) -> list[int]:
        return self._vocab.tokenize(text, add_special=False, parse_special=True) if text else []

    def _marks(self, rendered: RenderedChat) -> list[list[int]]:
        """The texts of the grammar, those several times that may end something."""
        assert rendered.grammar is not None
        found = {match[1] for match in _LITERAL.finditer(rendered.grammar.gbnf) if match[1]}
        texts = sorted({_ESCAPE.sub(_unescaped, text) for text in found} | {'"', "}", "]", ","})
        ends = [text for text in texts if _END.search(text)] * (1 + len(texts) // 20)
        ends += [*rendered.thinking_ends, *rendered.call_marks] * (len(texts) // 3)
        return [self._tokens(text) for text in [*texts, *ends]]

    def _next(
        self, grammar: GrammarSampler, marks: list[list[int]], plan: list[int], length: int
    ) -> int:
        if self._chance.random() < 0.8 and grammar.allows(self._ends[0]):
            return self._ends[0]
        if plan:
            if grammar.allows(plan[0]):
                return plan.pop(0)
            plan.clear()
        if self._chance.random() < 0.3 + length / 100:
            for mark in self._chance.sample(marks, len(marks)):
                if grammar.allows(mark[0]):
                    plan += mark[1:]
                    return mark[0]
        for pool, count in ((self._plain, 30), (self._short, 30)):
            for token in self._chance.choices(pool, k=count):
                if token not in self._ends and grammar.allows(token):
                    return token
        for mark in self._chance.sample(marks, len(marks)):
            if grammar.allows(mark[0]):
                plan += mark[1:]
                return mark[0]
        for token in self._chance.sample(self._letters, len(self._letters)):
            if grammar.allows(token):
                return token
        row = np.zeros(len(self._pieces), np.float32)
        grammar.mask(row)
        return int(self._chance.choice(np.flatnonzero(np.isfinite(row))))


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else _SHORT.get(match[2], match[2])
