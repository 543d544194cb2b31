"""What differs between two trees for those who use them: names, files, formats, defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.declarations import generate, parse
from tools.declarations import model as m

#: Where a number that is part of a format is written.
FORMATS = {
    "session file (LLAMA_SESSION_VERSION)": ("include/llama.h", "LLAMA_SESSION_VERSION"),
    "state of a sequence (LLAMA_STATE_SEQ_VERSION)": ("include/llama.h", "LLAMA_STATE_SEQ_VERSION"),
    "RPC, major (RPC_PROTO_MAJOR_VERSION)": ("ggml/include/ggml-rpc.h", "RPC_PROTO_MAJOR_VERSION"),
    "RPC, minor (RPC_PROTO_MINOR_VERSION)": ("ggml/include/ggml-rpc.h", "RPC_PROTO_MINOR_VERSION"),
    "GGUF (GGUF_VERSION)": ("ggml/include/gguf.h", "GGUF_VERSION"),
}


@dataclass
class Change:
    """What was added, removed and changed among things that have names."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def compare(old: dict[str, str], new: dict[str, str], *, show: bool = True) -> Change:
    """By name; what is behind a name is shown where it changed, if ``show``."""
    return Change(
        added=sorted(new.keys() - old.keys()),
        removed=sorted(old.keys() - new.keys()),
        changed=[
            f"{name}: {old[name]} -> {new[name]}" if show else name
            for name in sorted(old.keys() & new.keys())
            if old[name] != new[name]
        ],
    )


def text(tree: Path, name: str) -> str:
    """A file of a tree, "" if it is not there."""
    path = tree / name
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


# ---- headers -------------------------------------------------------------------------------------


def headers(old: Path, new: Path) -> dict[str, Change]:
    """Functions, fields and constants of the C headers that are declared for Python."""
    one, other = _declared(old), _declared(new)
    return {
        "functions": compare(_functions(one), _functions(other)),
        "fields of structs": compare(_fields(one), _fields(other)),
        "constants": compare(_constants(one), _constants(other)),
        "deprecated": compare(_deprecated(one), _deprecated(other)),
    }


def _declared(tree: Path) -> list[m.Module]:
    names = {name: each for name, each in generate.HEADERS.items() if name != "chat_h"}
    include = generate.include_directories(tree)[:-1]
    return [*parse.parse(names, include, generate.HIDDEN).values()]


def _functions(modules: list[m.Module]) -> dict[str, str]:
    return {each.name: each.c_type for module in modules for each in module.functions}


def _fields(modules: list[m.Module]) -> dict[str, str]:
    return {
        f"{record.name}.{each.name}": each.c_type
        for module in modules
        for record in module.records
        for each in record.fields
    }


def _constants(modules: list[m.Module]) -> dict[str, str]:
    found: dict[str, str] = {}
    for module in modules:
        found |= {name: str(value) for name, value in module.constants.items()}
        for values in module.enums.values():
            found |= {name: str(value) for name, value in values.items()}
    return found


def _deprecated(modules: list[m.Module]) -> dict[str, str]:
    return {
        name: reason
        for module in modules
        for name, reason in module.skipped
        if reason == "deprecated"
    }


# ---- what models need ----------------------------------------------------------------------------


def architectures(old: Path, new: Path) -> Change:
    """The names that GGUF files have for them."""
    return compare(_architectures(old), _architectures(new))


def _architectures(tree: Path) -> dict[str, str]:
    found = re.findall(
        r'\{\s*LLM_ARCH_\w+,\s*"([^"]+)"\s*\}', text(tree, "src/llama-arch.cpp").split("};")[0]
    )
    return dict.fromkeys(found, "")


def tokenizers(old: Path, new: Path) -> Change:
    """The names of the ways to split text that files may name."""
    return compare(_tokenizers(old), _tokenizers(new))


def _tokenizers(tree: Path) -> dict[str, str]:
    found = re.findall(r'tokenizer_(?:pre|model) == "([^"]+)"', text(tree, "src/llama-vocab.cpp"))
    return dict.fromkeys(found, "")


def files(old: Path, new: Path, pattern: str) -> Change:
    """Files by their names; those whose contents differ are changed."""
    return compare(_files(old, pattern), _files(new, pattern), show=False)


def _files(tree: Path, pattern: str) -> dict[str, str]:
    return {path.name: text(tree, str(path.relative_to(tree))) for path in tree.glob(pattern)}


def formats(old: Path, new: Path) -> Change:
    """The numbers of formats."""
    return compare(_formats(old), _formats(new))


def _formats(tree: Path) -> dict[str, str]:
    found = {}
    for what, (file, name) in FORMATS.items():
        match = re.search(rf"^#define {name}\s+(\w+)", text(tree, file), re.MULTILINE)
        found[what] = match[1] if match else "none"
    return found


# ---- llama-server --------------------------------------------------------------------------------


def routes(old: Path, new: Path) -> Change:
    """Method and path of each."""
    return compare(_routes(old), _routes(new))


def _routes(tree: Path) -> dict[str, str]:
    found = re.findall(
        r'ctx_http\.(get|post|put|del|patch)\s*\(\s*"([^"]+)"',
        text(tree, "tools/server/server.cpp"),
    )
    return {f"{method.upper()} {path}": "" for method, path in found}


def defaults(old: Path, new: Path) -> Change:
    """Of the settings of llama.cpp's programs."""
    return compare(dict(_defaults(old)), dict(_defaults(new)))


def _defaults(tree: Path) -> Iterator[tuple[str, str]]:
    """The numbers, words and switches that ``common/common.h`` gives its fields."""
    struct = ""
    for line in text(tree, "common/common.h").splitlines():
        if start := re.match(r"struct (common_\w+)\s*\{", line):
            struct = start[1]
        elif line.startswith("}"):
            struct = ""
        elif struct and (found := re.match(r"\s+[\w:<>]+\s+(\w+)\s*=\s*([^;{]+);", line)):
            yield f"{struct}.{found[1]}", found[2].strip()
