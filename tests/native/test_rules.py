"""Rules of the build (``native/cmake/Rules.cmake``, ``native/kernels``): where they apply.

Builds are configured only. What a rule does is tested beside it. A rule whose folder was removed is
missing here as well, and nothing else is.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from llama_py._native.loader import build_info
from llama_py.core import rules
from tests.native import builds
from tests.native.builds import ROOT, configured, for_cpu

pytestmark = pytest.mark.slow

KERNELS = ("/llamafile/sgemm.cpp",)
BUFFERS = ("/src/ggml-backend.cpp", "/ggml-cpu/repack.cpp", "/amx/amx.cpp")
MEMORY = ("/src/ggml.c",)
ATTENTION = ("/ggml-cpu/ops.cpp",)
TYPES_OF_BUFFERS = ("/ggml-cpu/ggml-cpu.cpp",)
RULES = sorted(path.parent.name for path in (ROOT / "native" / "kernels").glob("*/rule.cmake"))
#: What a build reads of this tree.
BUILT_FROM = ("CMakeLists.txt", "native", "vendor", "llama_py/version.py")

FLAGS = """
import json
from llama_py.core import rules

def flags():
    applied = [rule for rule, state in rules.build_info()["rules"].items() if state == "applied"]
    found = {rule: [flag.value for flag in rules._flags(rule)] for rule in applied}
    return json.dumps({rule: max(values) for rule, values in found.items() if values})

print(flags())
rules.rule_states()
print(flags())
"""


def option_of(rule: str) -> str:
    return f"LLAMA_PY_{rule.upper()}"


def test_headers_can_be_turned_off(gcc: str, tmp_path: Path) -> None:
    files = {
        "tensor_alignment": BUFFERS,
        "huge_pages": MEMORY,
        "cells_on_demand": BUFFERS[:1],
        "attention_heads": ATTENTION,
        "attention_tiles": ATTENTION,
        "gelu": ATTENTION,
        "half_products": KERNELS,
        "q8_products": KERNELS,
        "weight_panels": TYPES_OF_BUFFERS,
    }
    headers = {rule: changed for rule, changed in files.items() if rule in RULES}
    every = BUFFERS + MEMORY + ATTENTION + KERNELS + TYPES_OF_BUFFERS
    commands, states = configured(tmp_path / "on", gcc, every, *for_cpu("icelake-server"))
    assert len(commands) == len(every)
    used = [sum(f"/{rule}.h" in command for command in commands) for rule in headers]
    assert used == [*map(len, headers.values())]
    assert {states[option_of(rule)] for rule in headers} == {"applied"}
    options = [f"-D{option_of(rule)}=OFF" for rule in headers]
    commands, states = configured(tmp_path / "off", gcc, every, *options)
    assert len(commands) == len(every)
    assert not any(".h " in command.partition(" -o ")[0] for command in commands)
    assert {states[option_of(rule)] for rule in headers} == {"off"}


@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=() if rule == "gelu" else pytest.mark.long) for rule in RULES],
)
def test_a_rule_can_be_removed_with_its_folder(gcc: str, tmp_path: Path, rule: str) -> None:
    copy, build = tmp_path / "copy", tmp_path / "build"
    tracked = builds.run("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", *BUILT_FROM)
    for name in filter(lambda name: (ROOT / name).is_file(), tracked.splitlines()):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    shutil.rmtree(copy / "native" / "kernels" / rule)
    _, states = configured(build, gcc, KERNELS, *for_cpu("icelake-server"), source=copy)
    assert sorted(states) == sorted(option_of(each) for each in RULES if each != rule)
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    assert not [entry["file"] for entry in entries if f"/{rule}/" in entry["command"]]


def test_what_the_build_applied_is_what_llama_cpp_calls() -> None:
    """When this fails, llama.cpp calls something else now: see the rule's note for llama.cpp."""
    assert rules.rule_states() == build_info().get("rules", {})


def test_nothing_is_reached_before_it_is_computed(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python(FLAGS)
    assert done.returncode == 0, done.stderr
    before, after = map(json.loads, done.stdout.splitlines())
    if not before:
        pytest.skip("these libraries have no flags")
    assert set(before.values()) == {0}
    assert set(after.values()) == {1}


def test_a_rule_that_llama_cpp_does_not_call_is_not_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = {"LLAMA_PY_GELU": "applied", "LLAMA_PY_OTHER": "applied", "LLAMA_PY_OFF": "off"}
    monkeypatch.setattr(rules, "build_info", lambda: {"rules": states})
    flags = {"LLAMA_PY_GELU": [ctypes.c_ubyte(0)]}
    monkeypatch.setattr(rules, "_flags", lambda rule: iter(flags.get(rule, ())))
    assert rules.rule_states() == {**states, "LLAMA_PY_GELU": "not reached"}
    flags["LLAMA_PY_GELU"].append(ctypes.c_ubyte(1))
    assert rules.rule_states() == states


@pytest.mark.parametrize(
    ("options", "reached"),
    [
        (("-DGGML_AVX2=OFF", "-DGGML_FMA=OFF", "-DGGML_F16C=OFF"), ()),
        (
            ("-DGGML_AVX512=ON",),
            ("LLAMA_PY_ATTENTION_HEADS", "LLAMA_PY_GELU", "LLAMA_PY_HALF_PRODUCTS"),
        ),
        (
            (),
            (
                "LLAMA_PY_ATTENTION_HEADS",
                "LLAMA_PY_GELU",
                "LLAMA_PY_HALF_PRODUCTS",
                "LLAMA_PY_Q8_PRODUCTS",
            ),
        ),
    ],
)
def test_a_rule_whose_instructions_are_not_there_has_no_effect(
    gcc: str, tmp_path: Path, options: tuple[str, ...], reached: tuple[str, ...]
) -> None:
    """``llama-py inspect`` shows what a build has, and not what it would have elsewhere."""
    _, states = configured(tmp_path, gcc, KERNELS, *options)
    rules = ("ATTENTION_HEADS", "GELU", "HALF_PRODUCTS", "Q8_PRODUCTS")
    names = [f"LLAMA_PY_{rule}" for rule in rules]
    wanted = ["applied" if name in reached else "without effect" for name in names]
    assert [states[name] for name in names] == wanted


@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v3", "alderlake", "icelake-server"])
@pytest.mark.parametrize(
    "rule",
    [rule for rule in ("attention_heads", "gelu", "half_products", "q8_products") if rule in RULES],
)
def test_a_header_needs_no_other_one(gcc: str, llama_cpp: Path, rule: str, cpu: str) -> None:
    """Each rule can be turned off by itself."""
    source = llama_cpp / "ggml" / "src"
    folders = [source, source / "ggml-cpu", llama_cpp / "ggml" / "include"]
    includes = [f"-I{folder}" for folder in folders]
    path = ROOT / "native" / "kernels" / rule / f"{rule}.h"
    options = ["-std=gnu++17", f"-march={cpu}", "-fsyntax-only", "-w", "-x", "c++", "/dev/null"]
    command = [gcc, *includes, "-include", str(path), *options]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
