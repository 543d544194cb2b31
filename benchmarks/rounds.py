"""Six rounds of chat with every GGUF in a folder, compared with a fresh context.

For each model: --rounds greedy turns of one conversation, of which the last is a regenerated
answer. The logits of each turn are compared with those of an empty context. The table shows the
kind of memory, the reused tokens, and milliseconds per turn. Models that cannot chat (encoders,
vocabularies, adapters) are skipped with the reason.

Exit code 1 for an error, an empty answer, or different logits.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

from llama_py.bench.report import Report, Table
from llama_py.bench.subject import Verifier, add_model_arguments, chat, conditions, load
from llama_py.errors import LlamaError, ParameterError

__all__ = ["add_arguments", "run"]

_QUESTIONS = (
    "What is 2 + 3?",
    "Name three colours.",
    "Why is the sky blue?",
    "Say that again, shorter.",
    "And in one word?",
    "Thank you. What did I ask first?",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="where the GGUF files are")
    parser.add_argument("--rounds", type=int, default=len(_QUESTIONS), metavar="N")
    parser.add_argument("--max-tokens", type=int, default=12, metavar="N")
    parser.add_argument("--n-ctx", type=int, default=1024, metavar="N")
    add_model_arguments(parser)


def run(options: argparse.Namespace) -> Report:
    report = Report("models", conditions(options, options.n_ctx))
    report.conditions["model"] = options.folder
    files = sorted(Path(options.folder).rglob("*.gguf"))
    if not files:
        raise ParameterError(f"there is no GGUF file in {options.folder}")
    table = report.table(
        "", "model", "memory", "rounds", "evaluated", "reused", "ms a turn", "nmse", "result"
    )
    for path in files:
        _try(path, options, report, table)
    return report


def _try(path: Path, options: argparse.Namespace, report: Report, table: Table) -> None:
    own = argparse.Namespace(**{**vars(options), "model": str(path)})
    try:
        llm = load(own, options.n_ctx, n_seq_max=2)
    except LlamaError as error:
        table.add(path.name, None, 0, None, None, None, None, f"skipped: {error}")
        return
    with llm, closing(Verifier(load(own, options.n_ctx, n_seq_max=1))) as judge:
        kind = llm.memory_report()["kind"]
        try:
            turns, worst = _talk(llm, judge, options)
        except LlamaError as error:
            report.fail(f"{path.name}: {type(error).__name__}: {error}")
            table.add(path.name, kind, 0, None, None, None, None, "failed")
            return
    wrong = worst > judge.tolerance or not all(turn.generated for turn in turns)
    if wrong:
        report.fail(f"{path.name}: logits differ from a cold evaluation (NMSE {worst}), or empty")
    evaluated, reused = sum(turn.evaluated for turn in turns), sum(turn.reused for turn in turns)
    ms = 1e3 * sum(turn.seconds for turn in turns) / len(turns)
    result = "wrong" if wrong else "right"
    table.add(path.name, kind, len(turns), evaluated, reused, ms, worst, result)


def _talk(llm: Any, judge: Verifier, options: argparse.Namespace) -> tuple[list[Any], float]:
    messages: list[dict[str, Any]] = []
    turns, worst = [], 0.0
    for number in range(options.rounds):
        again = number == options.rounds - 1 and number > 0
        if again:
            messages.pop()  # the same question once more: a regenerated answer
        else:
            question = _QUESTIONS[number % len(_QUESTIONS)]
            messages.append({"role": "user", "content": question})
        turn = chat(llm, messages, max_tokens=options.max_tokens)
        worst = max(worst, judge.check(turn)[0])
        turns.append(turn)
        messages.append({"role": "assistant", "content": turn.text})
    return turns, worst
