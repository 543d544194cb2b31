"""Replays of transcripts and the search for empty replies, in process and against a server."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from llama_py.bench import cli, plots
from llama_py.bench.agents import DIALECTS
from llama_py.bench.empty_reply import prompts
from llama_py.bench.http_load import Endpoint, closed_loop, open_loop, percentile, together
from tests.bench.scripted import chunks, scripted_server

DATA = Path(__file__).parent.parent / "data"
SMALL = str(DATA / "agent-openai.json")


def replay(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = cli.main(["replay", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out or "{}")


def test_a_warm_replay_in_process_evaluates_only_what_is_new(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chart = tmp_path / "chart.svg"
    code, found = replay(capsys, SMALL, "--model", "demo", "--max-tokens", "6", "--svg", str(chart))
    assert found["failures"] == []  # none is empty, and each is the same as without reuse
    assert code == 0
    rows = found["tables"][0]["rows"]
    assert rows[0]["cached"] == 0
    for before, row in pairwise(rows):
        assert row["cached"] >= before["prompt"] - 8
    assert len(ElementTree.parse(chart).getroot()) > 10


def test_transcripts_are_replayed_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    other = str(DATA / "agent-claude.jsonl")
    arguments = ["--model", "demo", "--max-tokens", "4", "--calls", "2", "--warm-only"]
    _, found = replay(capsys, SMALL, other, *arguments)
    names = [row["call"] for row in found["tables"][0]["rows"]]
    assert names == [f"agent-{n} {i}" for i in (1, 2) for n in ("openai.json", "claude.jsonl")]


def test_an_empty_reply_of_a_server_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(lambda n, _: chunks("" if n == 2 else "yes")) as url:
        code, found = replay(capsys, SMALL, "--base-url", url, "--warm-only")
    assert code == 1
    assert "call 2: the reply is empty" in found["failures"][0]


def test_a_cold_run_repeats_no_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    def note(_: int, body: dict[str, Any]) -> list[dict[str, Any]]:
        seen.append(body["messages"][0]["content"])
        return chunks("yes")

    with scripted_server(note) as url:
        replay(capsys, SMALL, "--base-url", url, "--calls", "3")
    cold, warm = seen[1:4], seen[4:]
    assert len({text[:12] for text in cold}) == 3
    assert len({text[:12] for text in [*warm, *cold]}) == 4


def test_bad_input_has_an_exit_code_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    assert replay(capsys, str(tmp_path / "empty"), "--model", "demo")[0] == 2
    assert replay(capsys, SMALL)[0] == 2
    assert replay(capsys, SMALL, "--base-url", "http://127.0.0.1:9")[0] == 1  # nobody answers


# ---- empty replies ----------------------------------------------------------------------------


def test_growing_prefixes_have_the_sizes_asked_for() -> None:
    sizes = [130, 5000, 10_000]
    made = prompts(sizes)
    for size, messages, longer in zip(sizes, made, [*made[1:], None], strict=True):
        assert abs(sum(len(m["content"]) for m in messages) - size) <= 20
        assert longer is None or longer[: len(messages)] == messages


def test_no_reply_of_ours_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["empty-reply", "--model", "demo", "--sizes", "130", "900", "1800"]
    assert cli.main(arguments) == 1
    assert cli.main([*arguments, "--expect-fixed"]) == 0
    assert "warm reply" in capsys.readouterr().out


@pytest.mark.parametrize(("empty", "code"), [(None, 1), (4, 0), (1, 2)])
def test_an_injected_empty_reply_is_detected(
    empty: int | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_server(lambda n, _: chunks("" if n == empty else "yes")) as url:
        arguments = ["empty-reply", "--base-url", url, "--sizes", "130", "600", "900"]
        assert cli.main(arguments) == code
    assert capsys.readouterr().out


# ---- the client -------------------------------------------------------------------------------


def test_events_of_each_dialect_are_read() -> None:
    def script(_: int, body: dict[str, Any]) -> list[dict[str, Any]]:
        usage = {"input_tokens": 3, "output_tokens": 2}
        if "max_output_tokens" in body:
            cached = {"input_tokens": 12, "input_tokens_details": {"cached_tokens": 9}}
            done = {"status": "completed", "usage": {**usage, **cached}}
            return [
                {"type": "response.output_text.delta", "delta": "yes"},
                {"type": "response.completed", "response": done},
            ]
        if "stream_options" in body:
            return chunks("yes", prompt=12, cached=9)
        usage |= {"cache_read_input_tokens": 9, "cache_creation_input_tokens": 0}
        delta = {"type": "text_delta", "text": "yes"}
        return [
            {"type": "message_start", "message": {"usage": usage}},
            {"type": "content_block_delta", "delta": delta},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        ]

    messages = [{"role": "user", "content": "q"}]
    with scripted_server(script) as url:
        for path, encode in DIALECTS.values():
            reply = Endpoint(url).stream(path, encode(messages, (), 4))
            assert (reply.text, reply.prompt_tokens, reply.cached_tokens) == ("yes", 12, 9)
            assert reply.finish_reason
            assert not reply.error


def test_loads() -> None:
    with scripted_server(lambda n, _: chunks("yes")) as url:
        endpoint = Endpoint(url)
        asked = [
            together(lambda _: endpoint.chat([]), 3),
            closed_loop(lambda _: endpoint.chat([]), 5, 2),
            open_loop(lambda _: endpoint.chat([]), 4, 500.0),
        ]
    assert [len(replies) for replies in asked] == [3, 5, 4]
    assert all(reply.text == "yes" for replies in asked for reply in replies)


def test_a_server_that_is_not_there_is_an_error_of_the_reply() -> None:
    assert "refused" in Endpoint("http://127.0.0.1:9").chat([]).error


def test_load_on_a_server_is_summarised(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    chart = tmp_path / "chart.svg"
    with scripted_server(lambda n, _: chunks("yes", prompt=10, cached=5)) as url:
        arguments = ["--base-url", url, "--requests", "6", "--json", "--svg", str(chart)]
        assert cli.main(["serve", *arguments]) == 0
        assert cli.main(["serve", *arguments, "--rate", "200"]) == 0
    found = json.loads(capsys.readouterr().out.partition("\n}\n")[0] + "\n}")
    row = found["tables"][0]["rows"][0]
    assert (row["requests"], row["prompt reused"]) == (6, 0.5)
    assert chart.read_text().startswith("<svg")


def test_percentiles() -> None:
    values = [float(n) for n in range(1, 101)]
    assert percentile(values, 0.5) == pytest.approx(50, abs=1)
    assert percentile(values, 0.99) == pytest.approx(99, abs=1)
    assert percentile([3.0], 0.9) == 3.0


def test_a_chart_survives_odd_values() -> None:
    chart = plots.line_chart("a < b", "x", "y", [plots.Line("&", [1.0, float("nan"), 3.0])])
    root = ElementTree.fromstring(chart)
    assert "a < b" in "".join(root.itertext())
