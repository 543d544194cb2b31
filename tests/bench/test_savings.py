"""``bench savings``: what is measured, kept, shown, drawn and written into the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import cli, savings
from tools import reuse_savings

SESSION = "synthetic:1000:1"


def measure(results: Path, *more: str) -> int:
    settings = ["--models", "demo", "--calls", "2", "--max-tokens", "2", "--threads", "1"]
    arguments = [*settings, "--no-llama-server", "--results", str(results), "--json", *more]
    return cli.main(["savings", SESSION, *arguments])


def test_a_session_cold_and_warm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    results, charts = tmp_path / "results.json", tmp_path / "charts"
    assert measure(results, "--svg-dir", str(charts)) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["tables"][0]["rows"]
    assert (row["who"], row["calls"], row["same"]) == (savings.OURS, 2, "2 of 2")
    assert 0 < row["evaluated"] < row["prompt"]
    assert len(ElementTree.parse(charts / "reuse-demo.svg").getroot()) > 5
    written = results.read_text()
    assert measure(results) == 0  # it is there, and not measured again
    assert results.read_text() == written
    assert measure(results, "--show") == 0
    _break(results, "text", "")
    assert measure(results, "--show") == 1
    assert "the reply is empty" in capsys.readouterr().out


def _break(results: Path, name: str, value: Any) -> None:
    content = json.loads(results.read_text())
    content["pieces"][0]["calls"][-1][savings.OURS]["warm"][name] = value
    results.write_text(json.dumps(content))


def piece(**warm: Any) -> dict[str, Any]:
    """Two calls, each twice as quick when warm."""
    cold = {"first_ms": 1000.0, "prompt": 100, "cached": 0, "text": "a", "error": ""}
    warm = {**cold, "first_ms": 500.0, "cached": 60, **warm}
    calls = [
        {"call": n, "characters": 40_000, savings.OURS: {"cold": cold, "warm": warm}}
        for n in (1, 2)
    ]
    conditions = {"llama_py": "1", "llama.cpp": "0123456789", "threads": 2, "max_tokens": 8}
    place = {"model": "small", "transcript": "t", "characters": 40_000}
    return {**place, "conditions": conditions, "calls": calls}


def test_flags_that_change_no_work_are_repeats_of_one_measurement() -> None:
    measured = piece()
    for call in measured["calls"]:
        for name, first_ms, cached in (("", 400.0, 60), (" -a", 600.0, 60), (" -b", 450.0, 50)):
            warm = {"first_ms": first_ms, "prompt": 100, "cached": cached}
            call[savings.THEIRS + name] = {"warm": warm}
    assert savings.best_of_theirs(measured) == pytest.approx(0.9)  # the other two: 1.0, on average
    assert savings.best_of_theirs(piece()) is None


def test_the_page_gets_figures() -> None:
    text = reuse_savings.figures([piece()])
    assert "| small | 40,000 characters | llama_py | 2 | 200 | 80 | 2.0 s | 1.0 s | 0.50 |" in text
    assert "images/reuse-small.svg" in text
    page = reuse_savings.PAGE.read_text(encoding="utf-8")
    assert all(
        page.count(comment) == 1 for comment in (text.splitlines()[0], text.splitlines()[-1])
    )


@pytest.mark.parametrize("calls", [1, 5, 12, 28])
def test_calls_are_spread_over_the_session(calls: int) -> None:
    every = [[{"role": "user", "content": str(number)}] for number in range(28)]
    chosen = savings.spread(every, calls)
    assert len(chosen) == calls
    assert chosen[-1] == every[-1]
    assert chosen == sorted(chosen, key=every.index)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--show"],
        ["--calls", "1"],
        ["synthetic:5"],
        ["synthetic:x"],
        ["/nowhere"],
        ["--show", "--results", "{results}"],
    ],
)
def test_bad_input(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"pieces": [3]}')
    given = [each.format(results=tmp_path / "results.json") for each in arguments]
    assert cli.main(["savings", *given]) == 2


def test_replies_may_differ_only_where_two_tokens_are_equally_likely() -> None:
    def reply(*choices: tuple[str, float]) -> dict[str, Any]:
        return {"text": "".join(token for token, _ in choices), "choices": [*choices]}

    cold = reply(("a", 2.0), ("b", 0.01), ("c", 3.0))
    assert savings.is_same(cold, cold)
    assert savings.is_same(cold, reply(("a", 2.0), ("x", 0.005), ("y", 3.0)))
    assert not savings.is_same(cold, reply(("a", 2.0), ("x", 0.5), ("y", 3.0)))
    assert not savings.is_same(cold, reply(("x", 0.01), ("b", 0.01), ("c", 3.0)))
    assert not savings.is_same({"text": "a"}, {"text": "b"})
