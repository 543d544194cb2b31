"""Which files of llama.cpp print on standard error (``prints_to_log.h``, ``rule.cmake``)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

#: What the build compiles, but for chat code; patterns below llama.cpp's folder.
COMPILED = (
    "src/**/*.cpp",
    "ggml/src/*.c*",
    "ggml/src/ggml-cpu/*.c*",
    "ggml/src/ggml-cpu/amx/*.cpp",
    "ggml/src/ggml-cpu/arch/x86/*.c*",
    "ggml/src/ggml-cpu/llamafile/*.cpp",
    "tools/mtmd/*.cpp",
    "tools/mtmd/models/*.cpp",
)
#: Chat code: all of it is in the library of the shim.
CHAT = (
    "common/chat*.cpp",
    "common/jinja/*.cpp",
    "common/json*.cpp",
    "common/parsers/*.cpp",
    "common/peg-parser.cpp",
    "common/trie.cpp",
    "common/unicode.cpp",
)
#: Those that print only while the process ends, in training, or if a variable asks for it.
LEFT = {
    "common/chat.cpp",
    "common/peg-parser.cpp",
    "ggml/src/ggml-cpu/unary-ops.cpp",
    "ggml/src/ggml-opt.cpp",
    "ggml/src/ggml.c",
}


def printing(llama_cpp: Path, *patterns: str) -> set[str]:
    """The files that print on standard error, in code that is not a comment."""
    files = {path for pattern in patterns for path in llama_cpp.glob(pattern)}
    assert files
    found = set()
    for path in files:
        code = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        if re.search(r"fprintf *\(stderr|\bperror *\(|std::cerr", code):
            found.add(path.relative_to(llama_cpp).as_posix())
    return found


@pytest.fixture(scope="module")
def corrected() -> set[str]:
    rule = Path(__file__).with_name("rule.cmake").read_text(encoding="utf-8")
    return set(re.findall(r"\w[\w/-]*/[\w-]+\.(?:cpp|c)\b", rule))


def test_every_file_that_prints_is_known(llama_cpp: Path, corrected: set[str]) -> None:
    """When this fails, another file prints, and belongs to the rule; or one no longer does."""
    assert printing(llama_cpp, *COMPILED, *CHAT) == corrected | LEFT
