"""Writes the ctypes declarations from the pinned headers of llama.cpp.

    python -m tools.declarations [--check] [--llama-cpp DIR]

writes ``*_h.py``, ``*_h.pyi`` and ``abi.py`` into ``llama_py/_native``, and ``abi_check.c`` into
``native``; with ``--check`` it writes nothing and fails, showing the difference, where a file is
not what the headers give. Needs the ``libclang`` package (in the ``dev`` extra); the installed
library never imports this module.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
HERE = CHECKOUT / "llama_py" / "_native"
SHIM = CHECKOUT / "native" / "shim"
ABI_CHECK = CHECKOUT / "native" / "abi_check.c"
ABI_MODULE = "abi.py"
HEADERS = {
    "ggml_h": ["ggml.h", "ggml-alloc.h", "ggml-backend.h", "ggml-cpu.h", "ggml-opt.h"],
    "gguf_h": ["gguf.h"],
    "llama_h": ["llama.h"],
    "mtmd_h": ["mtmd.h", "mtmd-helper.h"],
    "chat_h": [
        "llama_py_chat.h",
        "llama_py_abort.h",
        "llama_py_grammar.h",
        "llama_py_importance.h",
        "llama_py_loading.h",
        "llama_py_log.h",
        "llama_py_logits.h",
        "llama_py_memory.h",
        "llama_py_nextn.h",
        "llama_py_steps.h",
        "llama_py_strings.h",
        "llama_py_vocab.h",
    ],
}
LIBRARIES = {
    "ggml_h": ("ggml-base", "ggml", "ggml-cpu"),
    "gguf_h": ("ggml-base",),
    "llama_h": ("llama",),
    "mtmd_h": ("mtmd",),
    "chat_h": ("chat",),
}
# The headers show this struct's fields to writers of samplers; all others only pass it on.
HIDDEN = frozenset({"llama_sampler"})


class GenerateError(Exception):
    """Why nothing could be generated, in a sentence."""


def generate(llama_cpp: Path) -> dict[str, str]:
    """The text of every generated file, by its name."""
    try:
        from tools.declarations import abi, parse, render
    except ModuleNotFoundError as error:
        raise GenerateError(f"{error}: pip install 'llama_py[dev]' (it brings libclang)") from error

    try:
        modules = parse.parse(HEADERS, include_directories(llama_cpp), HIDDEN)
    except parse.ParseError as error:
        raise GenerateError(str(error)) from error
    program = render.Program(modules, HEADERS, LIBRARIES)
    runtime = {name: render.render_runtime(module, program) for name, module in modules.items()}
    stubs = {name: render.render_stub(module, program) for name, module in modules.items()}
    check, digest = abi.render_abi_check(modules, HEADERS, runtime)
    return {
        **{f"{name}.py": text for name, text in runtime.items()},
        **{f"{name}.pyi": text for name, text in stubs.items()},
        ABI_MODULE: abi.MODULE.format(digest=digest),
        ABI_CHECK.name: check,
    }


def place(name: str) -> Path:
    """Where a generated file is."""
    return ABI_CHECK if name == ABI_CHECK.name else HERE / name


def include_directories(llama_cpp: Path) -> list[Path]:
    """Where the headers are, in a source tree of llama.cpp and in this one."""
    return [llama_cpp / "include", llama_cpp / "ggml/include", llama_cpp / "tools/mtmd", SHIM]


def find_llama_cpp() -> Path:
    """The pinned source, from the resolver that the build uses too."""
    resolver = CHECKOUT / "vendor" / "resolve.py"
    if not resolver.exists():
        raise GenerateError(f"{resolver} is missing: run in a checkout, or pass --llama-cpp DIR")
    done = subprocess.run(
        [sys.executable, os.fspath(resolver)], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise GenerateError(f"{resolver} failed (see above); pass --llama-cpp DIR instead")
    return Path(done.stdout.strip().splitlines()[-1])


def differences(files: dict[str, str]) -> list[str]:
    """A unified diff for each file on disk that is not what was generated."""
    out: list[str] = []
    for name, text in files.items():
        path = place(name)
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        diff = difflib.unified_diff(
            old.splitlines(), text.splitlines(), f"{name} (in the tree)", f"{name} (generated)",
            lineterm="", n=1,
        )  # fmt: skip
        out += list(diff)[:60]
    return out


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.declarations")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if different")
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="source of llama.cpp")
    options = parser.parse_args(arguments)
    try:
        files = generate(options.llama_cpp or find_llama_cpp())
    except GenerateError as error:
        print(f"generate: {error}", file=sys.stderr)
        return 2
    if options.check:
        return _report(differences(files))
    for name, text in files.items():
        place(name).write_text(text, encoding="utf-8", newline="\n")
    return 0


def _report(diff: list[str]) -> int:
    if not diff:
        return 0
    print("\n".join(diff))
    print("generate --check: the declarations and the headers differ; run without --check")
    return 1


if __name__ == "__main__":
    sys.exit(main())
