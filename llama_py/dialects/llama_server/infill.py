"""llama-server's ``/infill``: what stands before and behind the gap, and further files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_py.chat.vocab import VocabLike
from llama_py.dialects.context import CallContext
from llama_py.dialects.failures import Kind, RequestError
from llama_py.dialects.infill import suffix_tokens
from llama_py.errors import ParameterTypeError, shown
from llama_py.options.checks import read_text

__all__ = ["infill_prompt"]

#: What a repository and a file are called where the client does not say.
_PROJECT, _FILE = "myproject", "tmp"
#: Stands before a further text in vocabularies without a token for that.
_SNIPPET = "\n\n--- snippet ---\n\n"
#: Of what the gap is surrounded by, at least so much is kept of what comes before it.
_BEFORE = 3 / 4


def infill_prompt(context: CallContext, body: Mapping[str, Any], room: int) -> list[int]:
    """The tokens of a prompt whose continuation fills the gap.

    What does not fit goes: first further files, the first ones first, then what is furthest from
    the gap.

    Args:
        room: tokens that it may have.

    Raises:
        RequestError: the model has no infill tokens, or a part is missing.
        ParameterError: a part is not text.
    """
    vocab = context.vocab
    missing = [name for name in ("fim_pre", "fim_suf", "fim_mid") if getattr(vocab, name) < 0]
    if missing:
        raise RequestError(
            Kind.NOT_IMPLEMENTED,
            f"this model cannot fill in the middle: its vocabulary has no {', '.join(missing)}",
        )
    text = _text(body, "input_prefix")
    if body.get("prompt") is not None:
        text += read_text("prompt", body["prompt"], empty=True)
    before = vocab.tokenize(text, add_special=False)
    after = suffix_tokens(vocab, context.metadata, _text(body, "input_suffix"))
    start = [vocab.bos] if vocab.add_bos and vocab.bos >= 0 else []
    left = room - len(start) - 3
    behind = min(len(after), max(left - len(before), int(left * (1 - _BEFORE)), 0))
    ahead = min(len(before), max(0, left - behind))
    before, after = before[len(before) - ahead :], after[:behind]
    extra = _extra_tokens(vocab, body)
    extra = extra[len(extra) - max(0, min(len(extra), left - len(before) - len(after))) :]
    parts = [vocab.fim_pre, *before], [vocab.fim_suf, *after]
    first, second = reversed(parts) if context.spm_infill else parts
    return [*start, *extra, *first, *second, vocab.fim_mid]


def _text(body: Mapping[str, Any], name: str) -> str:
    if body.get(name) is None:
        raise RequestError(Kind.MISSING, f"the field {name!r} is missing", name)
    return read_text(name, body[name], empty=True)


def _extra_tokens(vocab: VocabLike, body: Mapping[str, Any]) -> list[int]:
    """``input_extra``: in the form of a repository, if the vocabulary has tokens for that."""
    chunks = body.get("input_extra")
    if chunks is None:
        return []
    if not isinstance(chunks, list):
        raise ParameterTypeError(f"input_extra must be a list of objects, not {shown(chunks)}")
    tokens: list[int] = []
    if chunks and vocab.fim_rep >= 0:
        tokens += [vocab.fim_rep, *_plain(vocab, _PROJECT + "\n")]
    for place, chunk in enumerate(chunks):
        name = f"input_extra[{place}]"
        if not isinstance(chunk, Mapping) or chunk.get("text") is None:
            raise ParameterTypeError(f"{name} must be an object with a text, not {shown(chunk)}")
        text = read_text(f"{name}.text", chunk["text"], empty=True)
        file = chunk.get("filename")
        file = _FILE if file is None else read_text(f"{name}.filename", file, empty=True)
        if vocab.fim_sep >= 0:
            tokens += [vocab.fim_sep, *_plain(vocab, file + "\n"), *_plain(vocab, text)]
        else:
            tokens += [*_plain(vocab, _SNIPPET), *_plain(vocab, text)]
    if chunks and vocab.fim_sep >= 0:
        tokens += [vocab.fim_sep, *_plain(vocab, "filename\n")]
    return tokens


def _plain(vocab: VocabLike, text: str) -> list[int]:
    return vocab.tokenize(text, add_special=False)
