"""Which upstream code this project leans on, and whether it changed.

Our rules, shim and modules name the files of llama.cpp that they replace, correct, mirror or rely
on. So the files that a part of ours names are those to look at when they change; and of their
functions first those that it names as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.move_pin.archives import ROOT
from tools.move_pin.surface import text

#: Where ours is. A folder of native/kernels, and a file elsewhere, is a part.
PARTS = ("native/kernels/*/", "native/shim/*", "native/cmake/*", "llama_py/**/*.py")
WRITTEN = {".py", ".cmake", ".md", ".h", ".cpp", ".c"}
_SOURCE = re.compile(r"[\w./-]*[\w-]+\.(?:cpp|c|hpp|h|cu|m)\b")
_WORD = re.compile(r"\b[a-z]\w{5,}\b")


@dataclass(frozen=True)
class Touched:
    """A file that a part of ours names, and which of its functions are not as they were.

    ``named`` are those of them that the part names as well. Both are empty where what changed is
    outside of functions, or the file was ``removed``.
    """

    part: str
    file: str
    changed: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    removed: bool = False


def touched(old: Path, new: Path) -> list[Touched]:
    """The files of llama.cpp that our parts name and that changed."""
    upstream = _by_name(old)
    found = []
    cache: dict[str, list[str] | None] = {}
    for part, words in _parts():
        for file in sorted({upstream[n] for n in _sources(words) if n in upstream}):
            if file not in cache:
                cache[file] = _changed(old, new, file)
            changed = cache[file]
            if changed is None:
                found.append(Touched(part, file, removed=True))
            elif text(old, file) != text(new, file):
                known = set(_WORD.findall(words))
                named = tuple(name for name in changed if name.rpartition("::")[2] in known)
                found.append(Touched(part, file, tuple(changed), named))
    return found


def state_functions(old: Path, new: Path) -> list[str]:
    """The functions that write or read what is kept, and that changed."""
    return [
        name
        for path in sorted((old / "src").glob("llama-*.cpp"))
        for name in _changed(old, new, f"src/{path.name}") or ()
        if re.search(r"\bstate_|session_", name.rpartition("::")[2])
    ]


def _parts() -> Iterator[tuple[str, str]]:
    """The parts of ours, by name, with all that is written in each."""
    for pattern in PARTS:
        for path in sorted(ROOT.glob(pattern)):
            within = sorted(path.rglob("*")) if path.is_dir() else [path]
            texts = [each for each in within if each.suffix in WRITTEN and each.is_file()]
            yield (
                path.relative_to(ROOT).as_posix(),
                "\n".join(each.read_text(encoding="utf-8") for each in texts),
            )


def _sources(words: str) -> set[str]:
    """Names of files, as llama.cpp may have them: with their folders and without."""
    found = set(_SOURCE.findall(words))
    return found | {name.rpartition("/")[2] for name in found}


def _by_name(tree: Path) -> dict[str, str]:
    """Each source below its path, and below its name where only one has that."""
    found: dict[str, str] = {}
    twice = set()
    for folder in ("common", "ggml/src", "src", "tools/mtmd", "tools/server"):
        for path in sorted((tree / folder).rglob("*")):
            if path.suffix in (".cpp", ".c", ".h", ".hpp", ".m"):
                whole = path.relative_to(tree).as_posix()
                found[whole] = whole
                twice.update({path.name} & found.keys())
                found[path.name] = whole
    return {name: whole for name, whole in found.items() if name not in twice}


def _changed(old: Path, new: Path, file: str) -> list[str] | None:
    """The functions that are not as they were, added or removed; None if the file is gone."""
    if not (new / file).is_file():
        return None
    one, other = functions(text(old, file)), functions(text(new, file))
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


# ---- functions of C++ ----------------------------------------------------------------------------

_BLANK = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.DOTALL)
_ELSE = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|else|elif|endif)\b", re.MULTILINE)
_SCOPE = re.compile(
    r"\b(?:namespace|struct|class|union)\b(?:\s+(?:alignas\([^)]*\)\s*)?([\w:]+))?[^()=]*$"
)
_NAME = re.compile(r"([~\w][\w:~]*(?:<[^<>()]*>)?|operator\s*\S+?)\s*\(")
_NO_NAME = {"__attribute__", "__declspec", "alignas", "decltype", "DEPRECATED", "noexcept", "if"}


def functions(source: str) -> dict[str, str]:
    """The functions that a C++ file defines, methods too, by name; overloads are joined.

    Comments and layout are not part of them, so that only what may compute something else differs.
    """
    clean = _first_branches(_BLANK.sub(_hidden, source))
    found: dict[str, str] = {}
    scopes: list[str] = []
    start = at = 0
    while (step := re.compile(r"[{};]").search(clean, at)) is not None:
        at = step.end()
        head = clean[start : step.start()].strip()
        if step[0] == "{":
            scope = _SCOPE.search(head)
            if scope or re.search(r'\bextern\s+""?\s*$', head):
                scopes.append((scope[1] or "") if scope else "")
            else:
                end = _behind(clean, at)
                name = _name(head)
                if name:
                    whole = "::".join([*filter(None, scopes), name])
                    body = " ".join(_kept(source[start:end]).split())
                    found[whole] = found.get(whole, "") + body
                at = end
        elif step[0] == "}" and scopes:
            scopes.pop()
        start = at
    return found


def _hidden(match: re.Match[str]) -> str:
    """Blanks of the same length, with the lines where they were; quotes stay."""
    blank = re.sub(r"[^\n]", " ", match[0])
    return f'"{blank[1:-1]}"' if match[0].startswith('"') else blank


def _kept(source: str) -> str:
    """A text without its comments."""
    return _BLANK.sub(lambda match: " " if match[0].startswith("/") else match[0], source)


def _first_branches(clean: str) -> str:
    """Without lines for the preprocessor, and with only the first branch of its conditions."""
    lines, depth, hidden = [], 0, 0
    continued = False
    for line in clean.splitlines(keepends=True):
        blank = re.sub(r"[^\n]", " ", line)
        directive = _ELSE.match(line)
        if directive:
            word = directive[1]
            if word.startswith("if"):
                depth += 1
            elif word == "endif":
                hidden = 0 if hidden == depth else hidden
                depth -= 1
            elif not hidden:
                hidden = depth
        is_directive = continued or line.lstrip().startswith("#")
        continued = is_directive and line.rstrip().endswith("\\")
        lines.append(blank if hidden or is_directive else line)
    return "".join(lines)


def _behind(clean: str, at: int) -> int:
    """Where the block ends that begins before ``at``."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(clean, at):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    return len(clean)


def _name(head: str) -> str | None:
    """The function that a head begins; None for values of arrays and such."""
    if "=" in head.partition("(")[0] and "operator" not in head:
        return None
    for match in _NAME.finditer(head):
        if match[1] not in _NO_NAME:
            return match[1]
    return None
