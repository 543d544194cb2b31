"""What reuse saves: sessions of agents, cold and warm, ours beside llama-server.

For each model of --models and each TRANSCRIPT, ``llama-py serve`` and llama-server of the same
llama.cpp (``python -m benchmarks build-tools``) are started with the same model, threads, batch
sizes and context, each with room for one conversation, and asked the same --calls calls in turn,
greedily and without flash attention. In the cold pass nothing is reused: our server forgets the
session after each call, llama-server is told ``cache_prompt: false``. In the warm pass each of them
reuses what it can. llama-server is also tried with ``--cache-reuse 256`` and, where there is a
sliding window, with ``--swa-full``; the best of these is what ours is compared with.

A TRANSCRIPT is a file as ``llama-py bench replay`` reads it, or synthetic:CHARACTERS[:SEED]. Of one
with more calls, --calls are taken at even distances, the last one among them.

The whole takes about an hour on two cores. With --results FILE it can be done in pieces: each model
with each transcript is written when it is done, and not measured again (--again measures it anew).
--show measures nothing. --svg-dir DIR draws the calls of the longest transcript, for each model.

Exit code 1 if a reply was empty, a request failed, a cold call reused something, or reuse changed a
reply of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.servers import (
    ServerProcess,
    add_llama_server_arguments,
    llama_server,
    our_server,
    settle,
)
from llama_py.bench.agents import ask
from llama_py.bench.http_load import Reply
from llama_py.bench.report import Report
from llama_py.bench.subject import resolve_model, whole_context
from llama_py.bench.transcripts import Message, Transcript, read_transcript
from llama_py.errors import ParameterError
from llama_py.version import LLAMA_CPP_COMMIT, __version__

__all__ = [
    "OURS",
    "THEIRS",
    "add_arguments",
    "best_of_theirs",
    "draw",
    "notes",
    "run",
    "servers_of",
    "spread",
    "total",
]

_MODELS = ("smollm2-135m", "gemma3-270m", "lfm2-135m")
_TRANSCRIPTS = ("synthetic:11000:8", "synthetic:11000:22", "synthetic:70000:1")
OURS = "llama_py"
THEIRS = "llama-server"
_WINDOWS = ("gemma3", "cohere2", "demo-swa")
#: Characters from which on a session counts as long, and what warm may then be of cold.
_LONG, _LONG_SHARE, _SHARE = 30_000, 0.38, 0.45
#: Both have room for one conversation: a branch that is left is cut off, and no cells of it lie
#: between those of the next one, so that warm and cold calls compute the very same.
_SEQUENCES = 1
#: Two tokens whose log-probabilities differ by less are equally likely: a batch of another size, as
#: reuse brings about, rounds differently. (Weights in Q8_0 round what they are multiplied with: on
#: a CPU with AMX, such differences changed by up to 0.04 in replies that were the same.)
_TIE = 0.05

Piece = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    parser.add_argument("transcripts", nargs="*", default=list(_TRANSCRIPTS), metavar="TRANSCRIPT")
    parser.add_argument("--models", nargs="+", default=list(_MODELS), metavar="NAME")
    parser.add_argument("--calls", type=int, default=12, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=8, metavar="N")
    parser.add_argument("--threads", type=int, default=min(cores, 8), metavar="N")
    parser.add_argument("--n-batch", type=int, default=512, metavar="N")
    add_llama_server_arguments(parser)
    parser.add_argument(
        "--llama-server-cold",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask llama-server cold as well: a third of the time, and no target depends on it",
    )
    parser.add_argument("--results", metavar="FILE", help="keep what was measured here, as JSON")
    parser.add_argument("--again", action="store_true", help="measure what is there once more")
    parser.add_argument("--show", action="store_true", help="only show what is in --results")
    parser.add_argument("--svg-dir", metavar="DIR", help="draw the calls, a file for each model")


def run(options: argparse.Namespace) -> Report:
    if options.calls < 2:
        raise ParameterError(f"--calls {options.calls}: expected 2 at least")
    if options.show and not options.results:
        raise ParameterError("--show needs --results FILE")
    results = _Results(options.results)
    if not options.show:
        transcripts = [read_transcript(name) for name in options.transcripts]
        for model in options.models:
            for transcript in transcripts:
                if options.again or not results.has(model, transcript.name, options):
                    results.add(_measure(options, model, transcript))
    return _report(options, results)


# ---- what is asked ---------------------------------------------------------------------------


def spread(calls: Sequence[list[Message]], count: int) -> list[list[Message]]:
    """``count`` of the calls at even distances; the last one is among them."""
    if len(calls) <= count:
        return list(calls)
    return [calls[(number + 1) * len(calls) // count - 1] for number in range(count)]


def _characters(messages: Sequence[Message]) -> int:
    return Transcript("", list(messages)).characters


# ---- who is asked ----------------------------------------------------------------------------


def _variants(model: str) -> dict[str, list[str]]:
    """Ways to start llama-server: the name of each, and its flags."""
    found = {THEIRS: [], f"{THEIRS} --cache-reuse 256": ["--cache-reuse", "256"]}
    if any(name in model for name in _WINDOWS):
        found[f"{THEIRS} --swa-full"] = ["--swa-full"]
    return found


@contextmanager
def _servers(
    options: argparse.Namespace, model: str, n_ctx: int
) -> Iterator[dict[str, ServerProcess]]:
    settings = {"model": model, "flash_attn": "off", "kv_unified": "on"}
    given = argparse.Namespace(**{**vars(options), **settings})
    with ExitStack() as stack:
        found = {OURS: stack.enter_context(our_server(given, n_ctx, _SEQUENCES))}
        for name, flags in {} if options.no_llama_server else _variants(model).items():
            found[name] = stack.enter_context(llama_server(given, n_ctx, 1, flags))
        yield found


def _ask(
    who: str, server: ServerProcess, messages: Sequence[Message], tools: Any, most: int, cold: bool
) -> Reply:
    more: dict[str, Any] = {"ignore_eos": True, "seed": 1}
    if who == OURS:
        more["session_id"] = "cold" if cold else "warm"
        # For ``is_same``. llama-server has none in a stream with tools.
        more.update(logprobs=True, top_logprobs=2)
    else:
        more["cache_prompt"] = not cold
    reply = ask(server.endpoint, "openai", messages, tools, most, **more)
    if who == OURS and cold:
        _forget(server, "cold")
    return reply


def _forget(server: ServerProcess, name: str) -> None:
    """Have our server forget a conversation, also one whose reply has just ended."""
    for _ in range(100):
        status, content = server.endpoint.ask("DELETE", f"/v1/sessions/{name}")
        if status in (200, 404):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the session {name} could not be forgotten: {content[:400]!r}")


# ---- measuring -------------------------------------------------------------------------------


def _measure(options: argparse.Namespace, model: str, transcript: Transcript) -> Piece:
    """All calls of a transcript, cold and warm, of every server in turn."""
    every = list(transcript.calls())
    calls = spread(every, options.calls)
    tools = transcript.tools
    n_ctx = _room(model, calls[-1], tools, len(calls))
    with _servers(options, model, n_ctx) as servers:
        for who, server in servers.items():  # a first request has buffers to make
            _ask(who, server, [{"role": "user", "content": "warm up"}], (), 2, cold=True)
        rows: list[dict[str, Any]] = [
            {"call": every.index(call) + 1, "characters": _characters(call)} for call in calls
        ]
        for kind in ("warm", "cold"):  # in this order: cold calls leave something to reuse
            if kind == "cold":
                _forget(servers[OURS], "warm")
            for number, call in enumerate(calls):
                for who in _in_turn(list(servers), number):
                    # Flags of llama-server change nothing where nothing is reused.
                    if (
                        kind == "warm"
                        or who == OURS
                        or (who == THEIRS and options.llama_server_cold)
                    ):
                        most, cold = options.max_tokens, kind == "cold"
                        settle()
                        reply = _ask(who, servers[who], call, tools, most, cold)
                        rows[number].setdefault(who, {})[kind] = _noted(reply)
    return {
        "model": model,
        "transcript": transcript.name,
        "characters": _characters(calls[-1]),
        "conditions": {**_settings(options), "n_ctx": n_ctx, "load": _load()},
        "calls": rows,
    }


def _room(model: str, longest: Sequence[Message], tools: Any, calls: int) -> int:
    """Tokens of context for the longest prompt, and what replies leave behind."""
    from llama_py.api.llama import Llama

    with Llama(resolve_model(model), vocab_only=True) as llm:
        text = json.dumps([*longest, *tools], ensure_ascii=False)
        return whole_context(len(llm.tokenize(text, add_bos=False)) + 64 * calls + 512)


def _in_turn(names: list[str], number: int) -> list[str]:
    """Who goes first changes with each call."""
    start = number % len(names)
    return names[start:] + names[:start]


def _noted(reply: Reply) -> dict[str, Any]:
    return {
        "first_ms": 1e3 * reply.first_token_seconds,
        "wall_ms": 1e3 * reply.seconds,
        "prompt": reply.prompt_tokens,
        "cached": reply.cached_tokens,
        "text": reply.text,
        "choices": reply.choices,
        "finish": reply.finish_reason,
        "error": reply.error,
    }


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """What makes figures comparable."""
    names = ("calls", "max_tokens", "threads", "n_batch", "no_llama_server", "llama_server_build")
    settings = {name: getattr(options, name) for name in names}
    return {"llama_py": __version__, "llama.cpp": LLAMA_CPP_COMMIT, **settings}


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


# ---- pieces ----------------------------------------------------------------------------------


class _Results:
    """What was measured, one piece for each model and transcript, also in a file."""

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self.pieces: list[Piece] = []
        if self._path is not None and self._path.exists():
            self.pieces = self._read(self._path)

    def _read(self, path: Path) -> list[Piece]:
        try:
            pieces: list[Piece] = json.loads(path.read_text(encoding="utf-8"))["pieces"]
            {(piece["model"], piece["transcript"], len(piece["calls"])) for piece in pieces}
        except (ValueError, KeyError, TypeError) as error:
            raise ParameterError(f"--results {path}: not written by this ({error})") from None
        return pieces

    def has(self, model: str, transcript: str, options: argparse.Namespace) -> bool:
        """Whether it was measured, under these settings."""
        found = (p for p in self.pieces if (p["model"], p["transcript"]) == (model, transcript))
        return any(
            all(piece["conditions"].get(k) == v for k, v in _settings(options).items())
            for piece in found
        )

    def add(self, piece: Piece) -> None:
        """Keep a piece, in place of an older one."""
        name = (piece["model"], piece["transcript"])
        self.pieces = [p for p in self.pieces if (p["model"], p["transcript"]) != name]
        self.pieces.append(piece)
        if self._path is not None:
            new = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
            new.write_text(json.dumps({"pieces": self.pieces}, indent=1) + "\n", encoding="utf-8")
            new.replace(self._path)


# ---- the report ------------------------------------------------------------------------------


def _report(options: argparse.Namespace, results: _Results) -> Report:
    report = Report("savings", _settings(options))
    columns = ("model", "transcript", "who", "calls", "prompt", "evaluated")
    table = report.table("", *columns, "cold first s", "warm first s", "warm / cold", "same")
    for piece in results.pieces:
        for who in servers_of(piece):
            table.add(piece["model"], piece["transcript"], who, *_row(piece, who))
        _judge(report, piece)
        _aim(report, piece)
    if options.svg_dir:
        draw(results.pieces, Path(options.svg_dir))
    return report


def servers_of(piece: Piece) -> list[str]:
    """Who was asked."""
    return [name for name in piece["calls"][0] if name not in ("call", "characters")]


def notes(piece: Piece, who: str, kind: str) -> list[dict[str, Any]]:
    """What is known of each call, ``cold`` or ``warm``."""
    return [call[who][kind] for call in piece["calls"] if kind in call.get(who, {})]


def total(piece: Piece, who: str, kind: str) -> float:
    """Seconds to the first tokens of all calls; NaN if they were not measured."""
    found = notes(piece, who, kind)
    return sum(note["first_ms"] for note in found) / 1e3 if found else float("nan")


def _row(piece: Piece, who: str) -> tuple[int, int, int, float, float, float, str]:
    warm, cold = notes(piece, who, "warm"), total(piece, who, "cold")
    prompt = sum(note["prompt"] for note in warm)
    evaluated = prompt - sum(note["cached"] for note in warm)
    same = f"{_equal(piece, who)} of {len(warm)}" if cold == cold else "-"
    seconds = total(piece, who, "warm")
    return len(warm), prompt, evaluated, cold, seconds, seconds / cold, same


def _equal(piece: Piece, who: str) -> int:
    pairs = zip(notes(piece, who, "cold"), notes(piece, who, "warm"), strict=False)
    return sum(is_same(cold, warm) for cold, warm in pairs)


def is_same(cold: Mapping[str, Any], warm: Mapping[str, Any]) -> bool:
    """Whether two replies are the same up to where one of two tokens was as good as the other."""
    if cold["text"] == warm["text"]:
        return True
    for (token, margin), (other, its_margin) in zip(
        cold.get("choices", ()), warm.get("choices", ()), strict=False
    ):
        if token != other:
            return bool(max(margin, its_margin) < _TIE)
    return False


def _judge(report: Report, piece: Piece) -> None:
    """What is wrong, whatever the machine was doing."""
    place = f"{piece['model']}, {piece['transcript']}"
    for call in piece["calls"]:
        for who, kinds in call.items():
            for kind, note in kinds.items() if isinstance(kinds, dict) else ():
                name = f"{place}, {kind} call {call['call']} of {who}"
                if note["error"]:
                    report.fail(f"{name} failed: {note['error']}")
                elif not note["text"]:
                    report.fail(f"{name}: the reply is empty")
                elif kind == "cold" and note["cached"]:
                    report.fail(f"{name}: {note['cached']} tokens were reused")
    wrong = len(notes(piece, OURS, "warm")) - _equal(piece, OURS)
    if wrong:
        report.fail(f"{place}: {wrong} warm replies of ours differ from the cold ones")


def _aim(report: Report, piece: Piece) -> None:
    place = f"{piece['model']}, {piece['transcript']}"
    cold, warm = (total(piece, OURS, kind) for kind in ("cold", "warm"))
    most = _LONG_SHARE if piece["characters"] >= _LONG else _SHARE
    report.at_most(f"{place}: warm / cold", warm / cold, most)
    theirs = best_of_theirs(piece)
    if theirs is not None:
        report.at_most(f"{place}: ours / the best of theirs", warm / theirs, 1.0)


def best_of_theirs(piece: Piece) -> float | None:
    """Seconds to the first tokens of all calls, with whichever flags were best.

    Flags with which as many tokens were evaluated did the same work: they count as repeats of one
    measurement, by their mean, because the least of several draws is not a fair rival of one.
    """
    by_work: dict[int, list[float]] = {}
    for who in servers_of(piece):
        if who.startswith(THEIRS):
            evaluated = sum(note["prompt"] - note["cached"] for note in notes(piece, who, "warm"))
            by_work.setdefault(evaluated, []).append(total(piece, who, "warm"))
    return min((sum(each) / len(each) for each in by_work.values()), default=None)


def draw(pieces: Sequence[Piece], folder: Path) -> None:
    """A chart for each model: the calls of its longest transcript."""
    folder.mkdir(parents=True, exist_ok=True)
    longest: dict[str, Piece] = {}
    for piece in sorted(pieces, key=lambda each: each["characters"]):
        longest[piece["model"]] = piece
    for model, piece in longest.items():
        lines = [
            plots.Line(f"{who}, {kind}", [note["first_ms"] / 1e3 for note in found])
            for who in (OURS, THEIRS)
            for kind in ("cold", "warm")
            if (found := notes(piece, who, kind))
        ]
        title = f"{Path(model).stem}: a session of {piece['characters']:,} characters"
        chart = plots.line_chart(title, "call", "time to first token, s", lines)
        plots.write(str(folder / f"reuse-{Path(model).stem.partition(':')[0]}.svg"), chart)
