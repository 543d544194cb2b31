"""Fill-in-the-middle prompts, from the infill tokens of the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llama_py.chat.vocab import VocabLike
from llama_py.dialects.context import CallContext
from llama_py.errors import ParameterError

__all__ = ["infill_tokens", "suffix_tokens"]

_SENTENCEPIECE = 1  # LLAMA_VOCAB_TYPE_SPM
_GUARD = "☺"


def infill_tokens(context: CallContext, prompt: str | Sequence[int], suffix: str) -> list[int]:
    """Tokens of a prompt whose continuation lies between ``prompt`` and ``suffix``.

    Raises:
        ParameterError: the model has no infill tokens.
    """
    vocab = context.vocab
    missing = [name for name in ("fim_pre", "fim_suf", "fim_mid") if getattr(vocab, name) < 0]
    if missing:
        raise ParameterError(
            f"suffix needs a model with infill tokens, and this one has no {', '.join(missing)}; "
            "leave suffix out, or load a model that was trained to fill in the middle"
        )
    before = [vocab.fim_pre]
    before += vocab.tokenize(prompt, add_special=False) if isinstance(prompt, str) else prompt
    after = [vocab.fim_suf, *suffix_tokens(vocab, context.metadata, suffix)]
    parts = after + before if context.spm_infill else before + after
    start = [vocab.bos] if vocab.add_bos and vocab.bos >= 0 else []
    return [*start, *parts, vocab.fim_mid]


def suffix_tokens(vocab: VocabLike, metadata: Mapping[str, str], suffix: str) -> list[int]:
    """Tokens of a suffix, without the space that SentencePiece vocabularies put before a text."""
    adds_space = metadata.get("tokenizer.ggml.add_space_prefix", "true") == "true"
    if not suffix or vocab.kind != _SENTENCEPIECE or not adds_space:
        return vocab.tokenize(suffix, add_special=False)
    tokens = vocab.tokenize(_GUARD + suffix, add_special=False)
    guard = b""
    for count, token in enumerate(tokens, 1):
        guard += vocab.piece(token)
        if guard.lstrip() == _GUARD.encode():
            return tokens[count:]
    return vocab.tokenize(suffix, add_special=False)
