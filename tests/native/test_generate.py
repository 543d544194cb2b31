"""The generated files are what the headers give, and the generator says when they are not."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tools.declarations import generate, parse

MODULES = sorted(generate.HEADERS)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_check_passes(llama_cpp: Path) -> None:
    assert generate.main(["--check", "--llama-cpp", str(llama_cpp)]) == 0


def test_check_shows_what_drifted(headers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(headers / "include/llama.h", "float p;        // prob", "double p;       // prob")
    assert generate.main(["--check", "--llama-cpp", str(headers)]) == 1
    shown = capsys.readouterr().out
    assert "-    ('p', c_float)," in shown
    assert "+    ('p', c_double)," in shown
    assert "run without --check" in shown


def test_output_does_not_depend_on_the_place(llama_cpp: Path, headers: Path) -> None:
    here, there = generate.generate(llama_cpp), generate.generate(headers)
    assert here == there
    assert not [name for name, text in here.items() if str(llama_cpp) in text]


def test_files_say_that_they_are_generated(llama_cpp: Path) -> None:
    for name, text in generate.generate(llama_cpp).items():
        assert "GENERATED" in text[:400], name
        assert "tools.declarations" in text[:400], name


def test_unreadable_headers_are_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main(["--check", "--llama-cpp", str(tmp_path)]) == 2
    assert "ggml.h" in capsys.readouterr().err


def test_a_type_without_a_rule_is_named(headers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(headers / "include/llama.h", "float p;        // prob", "long double p;  // prob")
    assert generate.main(["--llama-cpp", str(headers)]) == 2
    assert "long double" in capsys.readouterr().err


@pytest.mark.parametrize("module", MODULES)
def test_stub_and_module_declare_the_same_names(module: str) -> None:
    stub = (generate.HERE / f"{module}.pyi").read_text(encoding="utf-8")
    stubbed = set(re.findall(r"^(?:class |def )?(\w+)(?:[(:]|: )", stub, re.MULTILINE))
    runtime = importlib.import_module(f"llama_py._native.{module}")
    text = (generate.HERE / f"{module}.py").read_text(encoding="utf-8")
    declared = set(re.findall(r"^(?:class )?(\w+)(?:\(| = )", text, re.MULTILINE))
    declared |= set(runtime._FUNCTIONS)
    assert stubbed == {name for name in declared if not name.startswith("_")}


@pytest.mark.parametrize(
    ("tokens", "value"),
    [
        (["0xFFFFFFFF"], 0xFFFFFFFF),
        (["0x67676c61u"], 0x67676C61),
        (["-", "1"], -1),
        (["(", "1", "<<", "4", ")"], 16),
        (["OTHER", "+", "1"], 8),
        (['"GGUF"'], "GGUF"),
        (["1.5f"], 1.5),
        (["_Noreturn"], None),
        (["do", "{", "}"], None),
        (["f", "(", "1", ")"], None),
    ],
)
def test_macros(tokens: list[str], value: object) -> None:
    assert parse.evaluate(tokens, {"OTHER": 7}) == value
