"""``read_docstring``: the summary and the parameters of a docstring (Google, NumPy, reST)."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["read_docstring"]

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Returns?|Raises|Yields?|Examples?|Notes?|Attributes)\s*:?$"
)
_OF_PARAMETERS = ("Args", "Arguments", "Parameters", "Params")
_GOOGLE = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY = re.compile(r"(\*{0,2}\w+)\s*(?::.*)?$")
_REST = re.compile(r":param\s+(?:[\w\[\], |]+\s+)?(\w+)\s*:\s*(.*)")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The summary of a function, and the meanings of its parameters by name."""
    lines = text.splitlines()
    end = next((n for n, line in enumerate(lines) if _ends_summary(line)), len(lines))
    summary = " ".join(" ".join(lines[:end]).split())
    found: dict[str, str] = {}
    for section, block in _sections(lines[end:]):
        if section in _OF_PARAMETERS:
            found.update(_parameters(block))
    for name, meaning in _rest(lines[end:]):
        found[name] = meaning
    return summary, found


def _ends_summary(line: str) -> bool:
    return _SECTION.fullmatch(line.strip()) is not None or line.strip().startswith(":")


def _sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    name, block = "", list[str]()
    for line in lines:
        found = _SECTION.fullmatch(line.strip())
        if found:
            yield name, block
            name, block = found[1], []
        elif set(line.strip()) != {"-"}:
            block.append(line)
    yield name, block


def _parameters(block: list[str]) -> dict[str, str]:
    """Names at the least indentation; what is deeper, or behind a colon, belongs to them."""
    found: dict[str, str] = {}
    margin = min((_indent(line) for line in block if line.strip()), default=0)
    name = ""
    for line in filter(str.strip, block):
        text = line.strip()
        google, numpy = _GOOGLE.fullmatch(text), _NUMPY.fullmatch(text)
        if _indent(line) == margin and (google or numpy):
            is_type = numpy is not None and _followed_by_deeper(block, line, margin)
            name = (numpy if is_type and numpy else google or numpy or [""])[1].lstrip("*")
            found[name] = "" if is_type or google is None else google[2]
        elif name:
            found[name] = f"{found[name]} {text}".strip()
    return found


def _followed_by_deeper(block: list[str], line: str, margin: int) -> bool:
    """NumPy's form has ``name : type`` in a line of its own, and the meaning below."""
    if ":" in line and not re.match(r"\s*\*{0,2}\w+ : ", line):
        return False
    rest = block[block.index(line) + 1 :]
    return bool(rest) and _indent(rest[0]) > margin


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _rest(lines: list[str]) -> Iterator[tuple[str, str]]:
    name, meaning = "", ""
    for line in lines:
        text = line.strip()
        found = _REST.fullmatch(text)
        if found or text.startswith(":"):
            if name:
                yield name, meaning
            name, meaning = (found[1], found[2]) if found else ("", "")
        elif name:
            meaning = f"{meaning} {text}".strip()
    if name:
        yield name, meaning
