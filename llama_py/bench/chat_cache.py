"""Ten turns of one conversation: without reuse, with token prefixes, with text prefixes.

Each turn has a question of --user-tokens tokens and a reply of --max-tokens tokens. With --replies
letters the model is made to spell its reply letter by letter, so that tokenizing the conversation
again gives other tokens than those in memory; with --replies model it chooses its reply. The modes
(and llama-cpp-python, where --peer-python is offered) answer each turn one after the other, so that
they share the same conditions. Times are those of whole calls in milliseconds, the median over the
repeats. The logits of every warm answer are compared with those of an empty context.

Exit code 1 if the logits of an answer differ, or if a turn with text-prefix reuse evaluates
anything before the last reply again.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from llama_py.bench.conversations import (
    Peer,
    StartPeer,
    add_conversation_arguments,
    cells_of_one,
    no_peer,
    witnesses,
)
from llama_py.bench.report import Report, median, ratios
from llama_py.bench.subject import (
    Turn,
    Verifier,
    chat,
    clock_of,
    conditions,
    counter,
    load,
    set_reuse,
)
from llama_py.bench.workloads import letters, system_message, user_message

__all__ = ["add_arguments", "run"]

MODES = ("off", "token", "text")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_conversation_arguments(parser, turns=10)
    parser.add_argument("--replies", choices=["letters", "model"], default="letters")


def run(options: argparse.Namespace, start_peer: StartPeer = no_peer) -> Report:
    n_ctx = cells_of_one(options)
    report = Report("chat-cache", conditions(options, n_ctx))
    with ExitStack() as stack:
        subjects = {mode: stack.enter_context(load(options, n_ctx)) for mode in MODES}
        for mode, llm in subjects.items():
            set_reuse(llm, mode)
        verifier, peer = stack.enter_context(witnesses(options, n_ctx, start_peer))
        measured = [
            _Conversation(options, subjects, verifier, peer, repeat).play()
            for repeat in range(options.repeats)
        ]
    _judge(report, measured, verifier.tolerance)
    _show(report, measured, peer is not None)
    return report


class _Conversation:
    """One conversation, answered by all sides in turn."""

    def __init__(
        self,
        options: argparse.Namespace,
        subjects: dict[str, Any],
        verifier: Verifier,
        peer: Peer | None,
        repeat: int,
    ) -> None:
        self._options, self._subjects, self._repeat = options, subjects, repeat
        self._verifier, self._peer, self._llm = verifier, peer, subjects["text"]
        count = counter(self._llm)
        self._messages = [system_message(f"{repeat}", options.system_tokens, count)]
        for llm in subjects.values():
            llm.reset()
        if peer is not None:
            peer.ask("reset")

    def play(self) -> list[dict[str, Any]]:
        """Play all turns; return a record for each."""
        return [self._turn(number) for number in range(self._options.turns)]

    def _turn(self, number: int) -> dict[str, Any]:
        options, name = self._options, f"{self._repeat}/{number}"
        question = user_message(name, options.user_tokens, counter(self._llm))
        self._messages.append(question)
        script = self._script(name)
        record: dict[str, Any] = {
            mode: chat(
                llm, self._messages, script, clock_of(options), max_tokens=options.max_tokens
            )
            for mode, llm in self._subjects.items()
        }
        if self._peer is not None:
            record["peer"] = self._peer.ask(
                "chat",
                messages=self._messages,
                script=script,
                temperature=0.0,
                max_tokens=options.max_tokens,
            )
        record["nmse"], record["cold_prompt"] = self._verifier.check(record["text"])
        self._messages.append({"role": "assistant", "content": record["text"].text})
        return record

    def _script(self, name: str) -> list[int] | None:
        if self._options.replies == "model":
            return None
        llm = self._llm
        return letters(
            name, self._options.max_tokens, lambda text: llm.tokenize(text, add_bos=False)
        )


def _judge(report: Report, measured: list[list[dict[str, Any]]], tolerance: float) -> None:
    for repeat, records in enumerate(measured):
        held = replied = 0
        for number, record in enumerate(records, 1):
            turn: Turn = record["text"]
            place = f"repeat {repeat + 1}, turn {number}"
            if record["nmse"] > tolerance:
                report.fail(f"{place}: logits differ from a cold evaluation, NMSE {record['nmse']}")
            record["new"] = len(turn.tokens) - held
            record["again"] = max(0, turn.evaluated - record["new"])
            # A reply that ended at its limit may be cut up to where the tokenizer splits.
            if record["again"] > replied:
                report.fail(
                    f"{place}: {turn.evaluated} tokens were evaluated, and {record['new']} were "
                    f"new: {turn.info['reason']}"
                )
            replied = len(turn.generated)
            held = turn.held


def _show(report: Report, measured: list[list[dict[str, Any]]], with_peer: bool) -> None:
    columns = ["turn", "prompt", "new", *(f"{mode} ms" for mode in MODES)]
    columns += ["peer ms"] if with_peer else []
    columns += ["token evaluated", "text evaluated", "text reused", "path", "text/off", "nmse"]
    table = report.table("milliseconds of a call, tokens evaluated", *columns)
    worst = 0.0
    for number, records in enumerate(zip(*measured, strict=True), 1):
        seconds = {mode: [record[mode].seconds for record in records] for mode in MODES}
        last = records[-1]
        share = median(ratios(seconds["text"], seconds["off"]))
        worst = max(worst, share) if number > 1 else 0.0
        theirs = [record["peer"]["seconds"] for record in records] if with_peer else []
        peer = [1e3 * median(theirs)] if with_peer else []
        table.add(
            number,
            len(last["text"].tokens),
            last["new"],
            *(1e3 * median(seconds[mode]) for mode in MODES),
            *peer,
            last["token"].evaluated,
            last["text"].evaluated,
            last["text"].reused,
            last["text"].info["path"],
            share,
            max(record["nmse"] for record in records),
        )
    if len(measured[0]) > 1:
        report.at_most("slowest warm turn / the same turn without reuse", worst, 0.4)
    again = max(record["again"] for records in measured for record in records)
    report.at_most("most tokens of the history that a turn evaluated again", again, 0)
