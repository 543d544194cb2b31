"""What a fingerprint says about who made a state, and why a state of another one is refused.

A fingerprint is a text that two states have in common only if one context can load both. It begins
with the format of what describes a state, the llama.cpp that wrote its bytes, and the model; what
follows are the settings. Its beginning is read here for one purpose: whoever finds nothing reused
after an update is told that it was the update. A text that begins otherwise is that of other
settings: it may have been written by anybody.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

__all__ = ["Refusal", "refusal", "why_refused"]

#: Why a stored state is not used: it is of another llama.cpp, or of another format; or else the
#: model, a setting or an adapter is another one. The empty string: it is used.
Refusal = Literal["", "version", "settings"]

_BEGINNING = re.compile(r"\((\d{1,6}), '([\w.+-]{1,64})', '([0-9a-f]{1,128})', ", re.ASCII)


class _Maker(NamedTuple):
    state_format: str
    llama_cpp: str
    model: str


def _maker(fingerprint: str) -> _Maker | None:
    found = _BEGINNING.match(fingerprint)
    return _Maker(*found.groups()) if found else None


def refusal(own: str, other: str) -> Refusal:
    """Why a state with the fingerprint ``other`` is of no use where it should be ``own``."""
    if own == other:
        return ""
    mine, theirs = _maker(own), _maker(other)
    if mine is None or theirs is None or mine.model != theirs.model:
        return "settings"
    return "settings" if mine == theirs else "version"


def why_refused(own: str, other: str) -> str:
    """The same as a sentence without its subject, which is something that was saved."""
    mine, theirs = _maker(own), _maker(other)
    if refusal(own, other) != "version" or mine is None or theirs is None:
        return "was made by another model, or under other settings (fingerprint)"
    if mine.llama_cpp != theirs.llama_cpp:
        return (
            f"was written with llama.cpp {theirs.llama_cpp}, and this is {mine.llama_cpp}, which "
            "does not read states of other versions"
        )
    return (
        f"has the format {theirs.state_format}, and this llama_py reads the format "
        f"{mine.state_format}"
    )
