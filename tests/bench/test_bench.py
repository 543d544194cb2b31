"""The benchmarks run, find nothing wrong, and say so in JSON; the times are not looked at."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cli
from llama_py.bench import cli as package
from llama_py.bench import subject
from llama_py.bench.report import Report, Target
from llama_py.bench.workloads import letters, prose
from llama_py.cli import main
from llama_py.demo import demo_model_path
from llama_py.errors import LlamaError

SMALL = {
    "chat-cache": "--turns 3 --system-tokens 40 --user-tokens 12 --max-tokens 5",
    "sessions": "--turns 2 --system-tokens 40 --user-tokens 12 --max-tokens 4",
    "shared-prefix": "--requests 3 --system-tokens 80 --max-tokens 3 --repeats 1",
    "throughput": "--no-tools --prompt 32 --generate 8 --streams 2 --repeats 1 --depths 0 24",
    "rows": "--no-tools --rows 1 3 --repeats 1",
    "quants": "README.md --types Q4_0 --chunk 64 --chunks 4 --repeats 1",
    "loading": "--model demo --n-ctx 64 --repeats 1",
    "hotpath": "--model demo --repeats 1 --tokens 12 --runs 2",
    "stream-gaps": "--prompt 700 --repeats 1 --n-batch 64 --at-once 4 --each 30",
    "kv-memory": "--model demo --n-ctx 512 --prompt 40 --max-tokens 4",
    "speculative": "--model demo --prompt 40 --generate 30 --streams 2 --repeats 1",
    "drafts": "--model demo --kinds edit list --prompts 1 --generate 12",
}
#: What ``llama-py bench`` has.
OWN = ("throughput", "rows", "quants", "serve", "replay", "sessions", "chat-cache", "empty-reply")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = cli.main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", SMALL)
def test_runs_and_finds_nothing_wrong(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, name, *SMALL[name].split())
    assert found["failures"] == []
    assert code == 0
    assert found["name"] == name
    assert found["conditions"]["threads"] >= 1
    assert found["tables"][0]["rows"]
    assert all(target["value"] is not None for target in found["targets"])


def test_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copy(demo_model_path(), tmp_path / "demo.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF and no more")
    code, found = run(capsys, "models", str(tmp_path), "--rounds", "3", "--max-tokens", "3")
    results = {row["model"]: row["result"] for row in found["tables"][0]["rows"]}
    assert code == 0
    assert results["demo.gguf"] == "right"
    assert results["broken.gguf"].startswith("skipped")


def test_models_fail(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import rounds

    def broken(*_arguments: Any, **_options: Any) -> None:
        raise LlamaError("this call fails")

    monkeypatch.setattr(rounds, "chat", broken)
    folder = str(Path(demo_model_path()).parent)
    code, found = run(capsys, "models", folder, "--rounds", "1")
    assert code == 1
    assert "this call fails" in found["failures"][0]


def test_a_wrong_answer_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from llama_py.bench.subject import Verifier

    monkeypatch.setattr(Verifier, "check", lambda _self, _turn: (1.0, 0.1))
    assert run(capsys, "chat-cache", *SMALL["chat-cache"].split())[0] == 1
    assert run(capsys, "sessions", *SMALL["sessions"].split())[0] == 1


def test_bad_input_is_exit_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["chat-cache", "--model", "no-such-model"]) == 2
    assert "no-such-model" in capsys.readouterr().err
    assert cli.main(["chat-cache", "--model", "smollm2-135m:colour=red"]) == 2
    assert cli.main(["models", str(tmp_path)]) == 2
    # An interpreter without llama-cpp-python.
    assert cli.main(["sessions", "--turns", "1", "--peer-python", sys.executable]) == 2
    assert "llama_cpp" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted({*cli.BENCHMARKS, *cli.COMMANDS} - {*OWN}))
def test_the_package_says_where_a_benchmark_is(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", name]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"python -m benchmarks {name}" in said


@pytest.mark.parametrize("name", OWN)
def test_the_package_has_its_own_benchmarks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", name, "--help"]) == 0
    assert "llama-py bench" in capsys.readouterr().out
    assert main(["bench", name, "--peer-python", "python"]) == 2
    assert "python -m benchmarks" in capsys.readouterr().err


def test_a_shape_is_known_beside_the_package_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "FINDERS", [])
    assert main(["bench", "chat-cache", "--model", "smollm2-135m"]) == 2
    assert "python -m benchmarks" in capsys.readouterr().err


def test_the_package_needs_nothing_that_is_beside_it() -> None:
    names = ", ".join(package.BENCHMARKS.values())
    code = f"import sys, {names}; print([n for n in sys.modules if n.startswith('benchmarks')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", [*cli.BENCHMARKS, *cli.COMMANDS])
def test_help_says_what_is_measured(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "store":
        pytest.skip("it takes two positional arguments")
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 5


def test_table_and_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / "found.jsonl"
    arguments = [*SMALL["shared-prefix"].split(), "--output", str(output)]
    assert cli.main(["shared-prefix", *arguments]) == 0
    assert "targets" in capsys.readouterr().out
    assert json.loads(output.read_text())["name"] == "shared-prefix"


def test_targets_count_only_when_strict() -> None:
    report = Report("x")
    report.at_least("speed", 1.0, 2.0)
    report.at_most("time", 1.0, 2.0)
    assert [target.met for target in report.targets] == [False, True]
    assert (report.exit_code(), report.exit_code(strict=True)) == (0, 1)
    report.fail("wrong")
    assert report.exit_code() == 1
    assert "WRONG: wrong" in report.as_text()
    assert not Target("nothing measured", float("nan"), most=1.0).met


def test_workloads() -> None:
    text = prose("seed", 20, lambda some: len(some.split()))
    assert text == prose("seed", 20, lambda some: len(some.split()))
    assert len(text.split()) == 20
    assert len(letters("seed", 9, lambda letter: [ord(letter)])) == 9
