"""``PromptResolver``: the tokens of a prompt, those of cached replies where their text stands.

Safe to call from any thread: the index is locked while it is asked, and what takes long (finding
special tokens, tokenizing, reading a store) runs without that lock. What it returns may be evicted
before it is used; its tokens are the prompt's all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_py.errors import ContextOverflowError, ParameterError
from llama_py.memory.index import CacheIndex
from llama_py.memory.prompt_tokens import Reading, read_prompt
from llama_py.memory.sequences import Namespace, ResolvedPrompt, as_tokens
from llama_py.memory.stores import Stores
from llama_py.memory.text_keys import MARK, PromptText, TextKeys, TextMedium
from llama_py.states.prefix import TextPath, TokenInput

__all__ = ["PromptResolver"]


class PromptResolver:
    """See the module.

    Args:
        limit: tokens that one sequence can hold.
        use_text: whether cached replies are looked for by their text.
    """

    def __init__(
        self, text_keys: TextKeys, index: CacheIndex, stores: Stores, limit: int, *, use_text: bool
    ) -> None:
        self._text_keys = text_keys
        self._index = index
        self._stores = stores
        self._limit = limit
        self._use_text = use_text

    def from_tokens(self, tokens: TokenInput, namespace: Namespace) -> ResolvedPrompt:
        """A prompt given as tokens: it is found by its tokens, and says nothing about texts."""
        self._check(len(tokens))
        return ResolvedPrompt(np.array(tokens, np.int32), namespace=namespace)

    def from_text(
        self,
        text: bytes,
        boundaries: Sequence[int],
        plain: Sequence[tuple[int, int]],
        namespace: Namespace,
        *,
        add_special: bool,
        fresh: bool = False,
        media: Sequence[TextMedium] = (),
    ) -> ResolvedPrompt:
        """See ``SequenceCache.resolve_text``."""
        least = self._text_keys.fewest_tokens(text, self._limit)
        if least > self._limit:
            raise ContextOverflowError(least, self._limit, self._limit, at_least=True)
        if MARK in text and not media:  # no UTF-8: its key would say nothing
            tokens = self._text_keys.tokenizer.tokenize(
                text, add_special=add_special, parse_special=True
            )
            return self.from_tokens(tokens, namespace)
        prompt = self._text_keys.mark(text, plain, media)
        reading = self._read(prompt, namespace, add_special=add_special, fresh=fresh)
        self._check(len(reading.tokens))
        starts: tuple[int, ...] = ()
        if reading.offsets is not None and len(boundaries):
            places = prompt.in_key(boundaries)
            starts = tuple(np.searchsorted(reading.offsets[:-1], places).tolist())
        return ResolvedPrompt(
            as_tokens(reading.tokens),
            prompt.key,
            reading.offsets,
            starts,
            reading.kept,
            reading.sources,
            namespace,
        )

    def _read(
        self, prompt: PromptText, namespace: Namespace, *, add_special: bool, fresh: bool
    ) -> Reading:
        path: TextPath | None = None
        if self._use_text and not fresh:  # the longest cached path that its key begins with
            key = prompt.key
            found = [
                self._index.match_text(key, namespace),
                *self._stores.find_text(key, namespace),
            ]
            paths = [each for each in found if each is not None and self._fits(each, add_special)]
            path = max(paths, key=lambda each: int(each.offsets[-1]), default=None)
        reading = read_prompt(self._text_keys, prompt, path, add_special=add_special)
        if reading.kept and len(reading.tokens) > self._limit:
            # Whether a prompt fits must not depend on how a model once spelled a reply.
            reading = read_prompt(self._text_keys, prompt, None, add_special=add_special)
        return reading

    def _fits(self, path: TextPath, add_special: bool) -> bool:
        """A cached text that begins with an added BOS serves only prompts that get one."""
        if not len(path.tokens):
            return False
        first = self._text_keys.added[0][:1]
        has_bos = path.tokens[:1].tolist() == first and bool(path.offsets[1] == 0)
        return has_bos == (add_special and bool(first))

    def _check(self, count: int) -> None:
        if count == 0:
            raise ParameterError("the prompt is empty: there is nothing to evaluate")
        if count > self._limit:
            raise ContextOverflowError(count, self._limit, self._limit)
