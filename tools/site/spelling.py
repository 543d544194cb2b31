"""Spelling of the prose: with hunspell and a list of words that no dictionary has.

Code, addresses and names with digits or underscores are not prose. Names that the package exports
need not be listed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import llama_py
from llama_py import errors
from tools.site.pages import FENCE, PAGES, ROOT

__all__ = ["DICTIONARY", "WORDS", "available", "unknown", "words_of"]

WORDS = Path(__file__).with_name("words.txt")
#: It knows both "-ise" and "-ize".
DICTIONARY = "en_GB"
_NOT_PROSE = re.compile(
    r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|<[^>]+>|https?://\S+|\S*[\d_/~]\S*|\w+(?:\.\w+)+", re.DOTALL
)
_WORD = re.compile(r"[^\W\d_]+(?:['’][a-z]+)?")


def available() -> bool:
    """Whether hunspell and its dictionary are on this machine."""
    if shutil.which("hunspell") is None:
        return False
    listed = subprocess.run(["hunspell", "-D"], capture_output=True, text=True, input="")
    return f"/{DICTIONARY}\n" in listed.stderr


def words_of(markdown: str) -> set[str]:
    """The words of a page's prose."""
    return set(_WORD.findall(_NOT_PROSE.sub(" ", FENCE.sub(" ", markdown))))


def unknown() -> Iterator[tuple[str, str]]:
    """Pages, and words of theirs that neither the dictionary nor the list has."""
    listed = set(WORDS.read_text(encoding="utf-8").split())
    known = {name.lower() for name in (*llama_py.__all__, *errors.__all__)} | listed
    pages = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", *map(ROOT.joinpath, PAGES)]
    found = {page: words_of(page.read_text(encoding="utf-8")) for page in pages}
    strange = {
        word
        for word in _not_in_dictionary(sorted(set[str]().union(*found.values())))
        if re.sub(r"['’]s$", "", word.lower()) not in known
    }
    for page, words in found.items():
        for word in sorted(words & strange):
            yield page.relative_to(ROOT).as_posix(), word


def _not_in_dictionary(words: list[str]) -> set[str]:
    command = ["hunspell", "-d", DICTIONARY, "-i", "utf-8", "-l"]
    text = "\n".join(words)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return set(done.stdout.split())
