"""``Reference``: a model of a hub by name, as it is written on the command line and in settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from llama_py.errors import ParameterError

__all__ = ["Reference", "looks_like_path", "read_reference", "reference_of"]

_REPO = r"[\w.-]+/[\w.-]+"
_WHOLE = re.compile(
    rf"(?P<repo>{_REPO})"
    r"(?:/(?P<file>[^:@]+\.gguf))?"
    r"(?::(?P<quant>[\w.-]+))?"
    r"(?:@(?P<revision>\w[\w./-]*))?"
)
#: What says that the hub is meant, whatever files are here.
_PREFIXES = (
    *("https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/"),
    *("hf://", "hf:"),
)
#: An address as a browser shows it.
_PAGE = re.compile(
    rf"(?P<repo>{_REPO})/(?:blob|resolve|tree)/(?P<revision>[\w.-]+)(?:/(?P<file>[^?]+\.gguf))?.*"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """A model of a hub.

    Attributes:
        repo: ``owner/name``.
        quant: the quantization, or None for the usual ones.
        file: a file of the repository, or None.
        revision: a branch, a tag or a commit.
    """

    repo: str
    quant: str | None = None
    file: str | None = None
    revision: str = "main"

    def __str__(self) -> str:
        file = f"/{self.file}" if self.file else ""
        quant = f":{self.quant}" if self.quant else ""
        return self.repo + file + quant + (f"@{self.revision}" if self.revision != "main" else "")


def read_reference(text: str) -> Reference:
    """The reference that a text is.

    Raises:
        ParameterError: it is none.
    """
    plain = text
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    if plain != text and (page := _PAGE.fullmatch(plain)) and ".." not in plain:
        return Reference(page["repo"], file=page["file"], revision=page["revision"])
    found = _WHOLE.fullmatch(plain)
    if found is None or ".." in plain or (found["file"] and found["quant"]):
        raise ParameterError(
            f"{text!r} names no repository; expected owner/name or owner/name:QUANT, for "
            "example Qwen/Qwen3-0.6B-GGUF:Q8_0, or owner/name/file.gguf"
        )
    return Reference(found["repo"], found["quant"], found["file"], found["revision"] or "main")


def reference_of(text: str) -> Reference | None:
    """The reference that a text is where a path may stand as well, or None."""
    named = text.startswith(_PREFIXES)
    if not named and ("/" not in text or looks_like_path(text)):
        return None
    try:
        return read_reference(text)
    except ParameterError:
        if named:
            raise
        return None


def looks_like_path(text: str) -> bool:
    """Whether a text is a path, be there such a file or not.

    ``models/x.gguf`` is one, and so is ``a/b/x.gguf`` where there is a folder ``a``.
    """
    if text.startswith(_PREFIXES):
        return False
    first = text.partition("/")[0]
    if (
        first in ("", ".", "..")
        or first.startswith("~")
        or "\\" in text
        or "://" in text
        or Path(text).exists()
    ):
        return True
    return text.endswith(".gguf") and (text.count("/") < 2 or Path(first).is_dir())
