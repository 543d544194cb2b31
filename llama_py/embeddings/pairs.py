"""A query and a document as one input of a reranker, in the form that it was trained with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from llama_py.embeddings.inputs import Tokens

if TYPE_CHECKING:
    from llama_py.core.vocab import Vocab

__all__ = ["Pairs"]

_PLACES = re.compile(r"(\{query\}|\{document\})")


class Pairs:
    """Puts pairs together.

    Args:
        template: the model's own (its chat template "rerank"), with ``{query}`` and ``{document}``;
            None for the form of BERT: ``[CLS] query [SEP] document [SEP]``.
    """

    def __init__(self, vocab: Vocab, template: str | None) -> None:
        self._vocab = vocab
        self._template = template

    def tokens(self, query: str, document: str, longest: int | None = None) -> Tokens:
        """The tokens of a pair.

        Args:
            longest: leave out the end of the document where there are more tokens than that.
        """
        vocab = self._vocab
        join = self._joined if self._template is None else self._filled
        tokens = vocab.tokenize(document, add_special=False)
        ids = join(query, tokens, document)
        while longest is not None and len(ids) > longest:
            # Text that was cut may have a token or two more than what was left of it.
            tokens = tokens[: max(0, len(tokens) - (len(ids) - longest))]
            ids = join(query, tokens, vocab.detokenize(tokens).decode("utf-8", "ignore"))
            if not tokens:
                break
        return np.array(ids, np.int32)

    def _joined(self, query: str, document: list[int], _text: str) -> list[int]:
        vocab = self._vocab
        end = vocab.eos if vocab.eos >= 0 else vocab.sep
        asked = vocab.tokenize(query, add_special=False)
        parts = [
            [vocab.bos] if vocab.add_bos else [],
            asked,
            [end] if vocab.add_eos else [],
            [vocab.sep] if vocab.add_sep else [],
            document,
            [end] if vocab.add_eos else [],
        ]
        return [token for part in parts for token in part if token >= 0]

    def _filled(self, query: str, _document: list[int], text: str) -> list[int]:
        vocab, template = self._vocab, self._template or ""
        values = {"{query}": query, "{document}": text}
        pieces = [(values.get(each, each), each in values) for each in _PLACES.split(template)]
        if not (self._names_special(query) or self._names_special(text)):
            whole = "".join(piece for piece, _ in pieces)
            return vocab.tokenize(whole, add_special=False, parse_special=True)
        # What a document says must not be read as the end of it.
        ids: list[int] = []
        for piece, foreign in pieces:
            ids += vocab.tokenize(piece, add_special=False, parse_special=not foreign)
        return ids

    def _names_special(self, text: str) -> bool:
        raw = text.encode("utf-8", "surrogatepass")
        return any(name in raw for name in self._vocab.special_texts())
