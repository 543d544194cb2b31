"""Replays of transcripts and the search for empty replies, in process and against a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import cli, plots
from llama_py.bench import empty_reply
from llama_py.bench.agents import DIALECTS, ask
from llama_py.bench.empty_reply import prompts
from llama_py.bench.http_load import Endpoint, Reply, closed_loop, open_loop, percentile, together
from llama_py.bench.synthetic import TOOLS
from llama_py.bench.targets import Target, open_target
from llama_py.bench.transcripts import read_transcript
from tests.bench.scripted import chunks, scripted_server
from tests.chat import families
from tests.models import tiny_model
from tests.server.serving import Server, demo_settings, serving

DATA = Path(__file__).parent.parent / "data"
SMALL = str(DATA / "agent-openai.json")
KINDS = ("full", "iswa", "hybrid")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(demo_settings()) as server:
        yield server


def replay(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = cli.main(["replay", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out or "{}")


def test_a_warm_replay_in_process_evaluates_only_what_is_new(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chart = tmp_path / "chart.svg"
    arguments = ["--model", "demo", "--max-tokens", "6", "--calls", "4", "--threads", "1"]
    arguments += ["--svg", str(chart)]
    code, found = replay(capsys, SMALL, *arguments)
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
    arguments += ["--threads", "1"]
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
    arguments = ["empty-reply", "--model", "demo", "--threads", "1", "--sizes", "130", "900"]
    assert cli.main(arguments) == 1
    assert cli.main([*arguments, "--expect-fixed"]) == 0
    assert "warm reply" in capsys.readouterr().out


def agent_model(kind: str) -> str:
    """A tiny model whose template lists tools."""
    template = families.source("Qwen-Qwen2.5-7B-Instruct")
    return str(tiny_model(kind, chat_template=template, n_ctx_train=32768))


def growing(kind: str, *sizes: int) -> list[str]:
    n_ctx = "24576" if max(sizes) > 2000 else "4096"
    options = ["--n-ctx", n_ctx, "--threads", "1", "--max-tokens", "4"]
    return ["empty-reply", "--model", agent_model(kind), *options, "--sizes", *map(str, sizes)]


@pytest.mark.parametrize("kind", KINDS)
def test_25_no_warm_reply_is_empty_over_growing_prefixes(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression test 25, here with prefixes that are evaluated quickly.

    Of such sizes that no two tokens are as good as each other.
    """
    assert cli.main([*growing(kind, 130, 700, 1100, 1700), "--json"]) == 1
    check_growing(json.loads(capsys.readouterr().out))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_25_up_to_26_000_characters(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*growing(kind, 130, 5000, 10_000, 15_000, 20_000, 26_000), "--json"]) == 1
    check_growing(json.loads(capsys.readouterr().out))


def check_growing(found: dict[str, Any]) -> None:
    """None is empty, and all but the first one had reused the one before."""
    rows = found["tables"][0]["rows"]
    for before, row in pairwise(rows):
        assert row["warm reply"] == row["cold reply"] > 0
        assert row["cached"] >= before["prompt"] - 16


class _Broken:
    """A model that forgets what to say in one of its replies."""

    name = "broken"

    def __init__(self, target: Target, empty: int) -> None:
        self._target, self._empty, self._asked = target, empty, 0

    def forget(self) -> str:
        return self._target.forget()

    def ask(self, messages: Any, tools: Any, max_tokens: int) -> Reply:
        reply = self._target.ask(messages, tools, max_tokens)
        if self._asked == self._empty:
            reply.text = ""
        self._asked += 1
        return reply


@pytest.mark.parametrize(
    ("kind", "empty", "code"), [*((kind, 3, 0) for kind in KINDS), ("full", 0, 2)]
)
def test_a_broken_model_is_detected(
    kind: str, empty: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty reply that is put in, warm or cold, on each kind of memory."""

    @contextmanager
    def broken(options: Any) -> Iterator[Target]:
        with open_target(options) as target:
            yield _Broken(target, empty)

    monkeypatch.setattr(empty_reply, "open_target", broken)
    arguments = growing(kind, 130, 400)
    assert cli.main(arguments) == code


@pytest.mark.parametrize(("empty", "code"), [(None, 1), (4, 0), (1, 2)])
def test_an_injected_empty_reply_is_detected(
    empty: int | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_server(lambda n, _: chunks("" if n == empty else "yes")) as url:
        arguments = ["empty-reply", "--base-url", url, "--sizes", "130", "600", "900"]
        assert cli.main(arguments) == code
    assert capsys.readouterr().out


# ---- what transcripts contain ----------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_26_results_that_are_lists_survive_and_tool_messages_are_accepted(
    dialect: str, tmp_path: Path, server: Server
) -> None:
    """Regression test 26: from the file of an agent to a real server, in each dialect."""
    found = [{"type": "text", "text": "one finding"}, {"type": "text", "text": "another one"}]
    used = {"type": "tool_use", "id": "t1", "name": "lint", "input": {"paths": ["a.py"]}}
    records = [
        {"message": {"role": "user", "content": "Lint it."}},
        {"message": {"role": "assistant", "content": [used]}},
        {
            "message": {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": found}],
            }
        },
        {"message": {"role": "assistant", "content": "Done."}},
    ]
    path = tmp_path / "session.jsonl"
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    transcript = read_transcript(str(path))
    *_, call = transcript.calls()
    assert call[-1] == {
        "role": "tool",
        "tool_call_id": "t1",
        "content": "one finding\nanother one",
    }
    reply = ask(Endpoint(server.url), dialect, call, TOOLS, 4)
    assert (reply.error, reply.text != "") == ("", True)
    assert reply.prompt_tokens > 30


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
