"""Texts and tokens in llama-server's forms: prompts, ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from llama_py.chat.vocab import VocabLike
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.media_parts import MEDIA_MARKER, MarkedPrompt, read_marked_prompt
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.options.checks import check_bool, check_number, whole_text

__all__ = [
    "as_bool",
    "detokenize",
    "mixed_tokens",
    "prompt_bytes",
    "read_prompts",
    "tokenize",
    "tokens_of",
]

_PROMPT = (
    "a string, a list of token ids and strings, an object with prompt_string, or a list of these"
)


def as_bool(body: Mapping[str, Any], name: str, default: bool) -> bool:
    """A member that is true or false; null is the default."""
    value = body.get(name)
    if value is None:
        return default
    check_bool(name, value)
    return bool(value)


# ---- prompts ---------------------------------------------------------------------------------


def read_prompts(value: Any, most: int) -> list[str | list[Any] | MarkedPrompt]:
    """The prompts that ``prompt`` means: texts, lists of token ids and texts, or texts with media.

    A list that contains a number is one prompt; any other list has a prompt in each item.

    Args:
        most: how many there may be.

    Raises:
        ParameterError: it is not a prompt, or there are too many.
        MediaError: the base64 of a picture or sound is none.
    """
    if isinstance(value, (Mapping, str)):
        return [_one_prompt(value, "prompt")]
    if not _is_list(value):
        raise ParameterTypeError(f"prompt must be {_PROMPT}, not {shown(value)}")
    if not value:
        raise ParameterError(f"prompt is empty; it must be {_PROMPT}")
    if any(isinstance(item, (int, float)) and not isinstance(item, bool) for item in value):
        return [_mixed(value)]
    if len(value) > most:
        raise ParameterError(f"prompt has {len(value)} prompts; at most {most} are allowed")
    return [_one_prompt(item, f"prompt[{place}]") for place, item in enumerate(value)]


def _one_prompt(item: Any, where: str) -> str | list[Any] | MarkedPrompt:
    if isinstance(item, Mapping):
        marked = read_marked_prompt(item, where)
        if marked is not None:
            return marked
        item = item.get("prompt_string")
    if isinstance(item, str):
        return whole_text(item, "prompt")
    if _is_list(item):
        return _mixed(item)
    raise ParameterTypeError(f"prompt must be {_PROMPT}, and contains {shown(item)}")


def _mixed(items: Sequence[Any]) -> list[Any]:
    """Token ids and texts, which can be encoded."""
    return [whole_text(each, "prompt") if isinstance(each, str) else each for each in items]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def mixed_tokens(
    vocab: VocabLike, name: str, value: Any, *, add_special: bool, parse_special: bool
) -> list[int]:
    """The tokens of a text, or of a list of token ids and texts.

    Args:
        name: for messages.
        add_special: begin (and end) as the model was trained with, if a text comes first.

    Raises:
        ParameterError: it is something else, or an id is not in the vocabulary.
    """
    if isinstance(value, str):
        value = [value]
    if not _is_list(value):
        raise ParameterTypeError(
            f"{name} must be a string, or a list of token ids and strings, not {shown(value)}"
        )
    tokens: list[int] = []
    for place, item in enumerate(value):
        if isinstance(item, str):
            special = add_special and place == 0
            tokens += vocab.tokenize(item, add_special=special, parse_special=parse_special)
        else:
            check_number(f"{name}[{place}]", item, 0, vocab.n_tokens - 1, integer=True)
            tokens.append(int(item))
    return tokens


def prompt_bytes(vocab: VocabLike, tokens: Sequence[int]) -> bytes:
    """The text of a prompt, special tokens as their text, and a marker in place of media."""
    texts: list[bytes] = []
    for cells, group in groupby(tokens, key=lambda token: token < 0):
        texts += [MEDIA_MARKER.encode()] if cells else map(vocab.piece, group)
    return b"".join(texts)


# ---- endpoints -------------------------------------------------------------------------------


def tokenize(vocab: VocabLike, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of ``/tokenize``."""
    if body.get("content") is None:
        raise RequestError(Kind.MISSING, "the field 'content' is missing", "content")
    tokens = mixed_tokens(
        vocab,
        "content",
        body["content"],
        add_special=as_bool(body, "add_special", False),
        parse_special=as_bool(body, "parse_special", True),
    )
    if not as_bool(body, "with_pieces", False):
        return {"tokens": tokens}
    pieces: list[dict[str, Any]] = []
    for token in tokens:
        piece = vocab.piece(token)
        try:
            pieces.append({"id": token, "piece": piece.decode("utf-8")})
        except UnicodeDecodeError:  # its bytes are not text by themselves
            pieces.append({"id": token, "piece": list(piece)})
    return {"tokens": pieces}


def tokens_of(vocab: VocabLike, body: Mapping[str, Any]) -> list[int]:
    """``tokens`` of a body, which must all be in the vocabulary."""
    tokens = body.get("tokens")
    if tokens is None:
        raise RequestError(Kind.MISSING, "the field 'tokens' is missing", "tokens")
    if not _is_list(tokens):
        raise ParameterTypeError(f"tokens must be a list of token ids, not {shown(tokens)}")
    for place, token in enumerate(tokens):
        check_number(f"tokens[{place}]", token, 0, vocab.n_tokens - 1, integer=True)
    return [int(token) for token in tokens]


def detokenize(vocab: VocabLike, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of ``/detokenize``: special tokens have their text."""
    text = vocab.detokenize(tokens_of(vocab, body), special=True)
    return {"content": text.decode("utf-8", "replace")}
