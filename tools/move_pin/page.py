"""The page: what changed, what the checks say, and what a person has to decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.move_pin import surface, touched
from tools.move_pin.archives import Tree
from tools.move_pin.checks import Result
from tools.move_pin.surface import Change
from tools.move_pin.touched import Touched

#: How many names a line has before the rest is counted.
_MOST = 24
_QUESTIONS = {
    "reached": "Is it reached?",
    "needed": "Is it still needed?",
    "trap": "Is it still a trap?",
}
_ADVICE = {
    "reached": "llama.cpp calls something else now: the rule's header has to follow, or goes",
    "needed": "llama.cpp may have corrected it: build and measure without the rule, and remove it",
    "trap": "llama.cpp does something else now: read its diff, and simplify what goes around it",
}


@dataclass
class Differences:
    """Everything that was compared between two trees."""

    headers: dict[str, Change]
    models: dict[str, Change]
    chat: dict[str, Change]
    formats: Change
    server: dict[str, Change]
    touched: list[Touched] = field(default_factory=list)
    states: list[str] = field(default_factory=list)


def compared(old: Path, new: Path) -> Differences:
    """The differences between two trees."""
    return Differences(
        headers=surface.headers(old, new),
        models={
            "architectures": surface.architectures(old, new),
            "tokenizers": surface.tokenizers(old, new),
        },
        chat={
            "templates": surface.files(old, new, "models/templates/*.jinja"),
            "parsers (common/parsers)": surface.files(old, new, "common/parsers/*.cpp"),
        },
        formats=surface.formats(old, new),
        server={"routes": surface.routes(old, new), "defaults": surface.defaults(old, new)},
        touched=touched.touched(old, new),
        states=touched.state_functions(old, new),
    )


def page(old: Tree, new: Tree, found: Differences, done: list[str], checks: list[Result]) -> str:
    """The whole page, in Markdown."""
    lines = [f"# llama.cpp: from {old.name} to {new.name}", "", *_source(new)]
    lines += ["", "## What a person has to decide", ""]
    lines += [f"* {line}" for line in decisions(found, checks)] or ["Nothing that was found."]
    for title, groups in (
        ("Headers", found.headers),
        ("Models", found.models),
        ("Chat", found.chat),
        ("State formats", {"numbers": found.formats}),
        ("llama-server", found.server),
    ):
        lines += ["", f"## {title}", ""]
        lines += [line for name, change in groups.items() for line in _change(name, change)] or [
            "As they were."
        ]
    if found.states:
        lines += ["", f"Functions that write or read states and changed: {_names(found.states)}."]
    lines += ["", "## Functions in files that our code names", "", *_touched(found.touched)]
    if done:
        lines += ["", "## What was done", "", *(f"* {line}" for line in done)]
    if checks:
        lines += results(checks)
    return "\n".join([*lines, ""])


def results(checks: list[Result]) -> list[str]:
    """The answers, in tables."""
    lines = ["", "## Checks"]
    for kind, question in _QUESTIONS.items():
        rows = [each for each in checks if each.kind == kind]
        if rows:
            lines += ["", f"| {question} | | |", "| --- | --- | --- |"]
            lines += [f"| {each.subject} | {each.answer} | {each.detail} |" for each in rows]
    return lines


def decisions(found: Differences, checks: list[Result]) -> Iterator[str]:
    """What does not follow by itself."""
    for each in checks:
        if each.answer == "no":
            yield f"**{each.subject}** ({each.kind}): {_ADVICE[each.kind]} ({each.detail})."
    yield from _of_headers(found.headers)
    if found.formats:
        yield (
            "Stores, session files and states that users have are of another format: say in the "
            "changelog which are refused, keep small files of the old format for the tests."
        )
    models, chat = found.models, found.chat
    if models["architectures"]:
        yield "Architectures: run the table of docs/architectures.md, and its reasons by name."
    if models["tokenizers"].added:
        yield f"Tokenizers, new: {_names(models['tokenizers'].added)}: do the splitting rules hold?"
    if chat["templates"] or chat["parsers (common/parsers)"]:
        yield "Templates and parsers: the forging, own-words and parser tests on each new template."
    if found.server["routes"] or found.server["defaults"]:
        yield "llama-server: docs/llama-server.md has its routes and defaults (the port!)."
    for file in sorted({each.file for each in found.touched if each.removed}):
        yield f"{file} is gone, and our code names it."
    named = sorted({each.part for each in found.touched if each.named})
    if named:
        yield f"Functions that our code names changed; compare each: {_names(named)}."


def _of_headers(headers: dict[str, Change]) -> Iterator[str]:
    functions, fields = headers["functions"], headers["fields of structs"]
    if functions.removed:
        yield f"Functions that are gone ({_names(functions.removed)}): the drop-in needs a shim."
    if functions.added:
        yield f"Functions that are new ({_names(functions.added)}): of use?"
    if fields.added:
        yield f"Fields that are new ({_names(fields.added)}): an option of ours, or its default?"
    if headers["deprecated"].added:
        yield f"Functions that are deprecated now ({_names(headers['deprecated'].added)})."


def _source(new: Tree) -> Iterator[str]:
    yield f"The tree: `{new.path}`."
    if new.pin is None:
        yield "A directory: nothing was verified, and it cannot be pinned."
    else:
        archive = new.pin.archive
        yield f"The archive: `{archive.requirement}`, SHA-256 `{archive.sha256}`,"
        yield f"which has llama.cpp {new.pin.commit} in `{archive.prefix}`."


def _change(name: str, change: Change) -> Iterator[str]:
    for what in ("added", "removed", "changed"):
        names = getattr(change, what)
        if names:
            yield f"* {name}, {what} ({len(names)}): {_names(names)}"


def _names(names: list[str]) -> str:
    more = f", and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(f"`{name}`" for name in names[:_MOST]) + more


def _touched(found: list[Touched]) -> Iterator[str]:
    """By file: its functions that changed, those that ours names first, and who names the file."""
    if not found:
        yield "None of them changed."
    for file in sorted({each.file for each in found}):
        parts = [each for each in found if each.file == file]
        yield f"* `{file}`: {_functions(parts)}"
        yield f"  named by {_names([each.part for each in parts])}"


def _functions(parts: list[Touched]) -> str:
    if parts[0].removed:
        return "**gone**"
    named = sorted({name for each in parts for name in each.named})
    others = [name for name in parts[0].changed if name not in named]
    if not parts[0].changed:
        return "types, tables and comments only"
    strong = ", ".join(f"**`{name}`**" for name in named)
    return ", ".join(filter(None, (strong, _names(others) if others else "")))
