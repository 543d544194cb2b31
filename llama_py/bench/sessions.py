"""Several conversations that take turns in one model: the cost of switching, and that none leaks.

Every session has its own system prompt of --system-tokens tokens, and --user-tokens new tokens in
each turn. All sessions have their first turn, then all of them their second one, and so on.
llama-cpp-python (where --peer-python is offered) answers the same call right after us. Times are
those of whole calls in milliseconds: the mean of the sessions, the median over the repeats.

Exit code 1 if a prompt in memory is not the session's own text, or if logits differ from those of
an empty context that evaluates the same tokens.
"""

from __future__ import annotations

import argparse
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
)
from llama_py.bench.workloads import Message, system_message, user_message

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_conversation_arguments(parser, turns=5)
    parser.add_argument("--sessions", type=int, default=2, metavar="N")
    parser.add_argument(
        "--n-ctx",
        type=int,
        default=0,
        metavar="N",
        help="tokens in memory, for both sides; by default just enough for all sessions",
    )
    parser.add_argument(
        "--n-seq-max",
        type=int,
        default=8,
        metavar="N",
        help="sequences in memory; with fewer than sessions, some are offloaded and brought back",
    )


def run(options: argparse.Namespace, start_peer: StartPeer = no_peer) -> Report:
    together = cells_of_one(options) * min(options.sessions, options.n_seq_max)
    n_ctx = options.n_ctx or together
    report = Report("sessions", conditions(options, n_ctx))
    with (
        load(options, n_ctx, n_seq_max=options.n_seq_max) as llm,
        witnesses(options, n_ctx, start_peer) as (verifier, peer),
    ):
        measured = [
            _Round(options, llm, verifier, peer, repeat, report).play()
            for repeat in range(options.repeats)
        ]
    _show(report, measured, peer is not None)
    return report


class _Round:
    """All sessions, from their first turn to their last."""

    def __init__(
        self,
        options: argparse.Namespace,
        llm: Any,
        verifier: Verifier,
        peer: Peer | None,
        repeat: int,
        report: Report,
    ) -> None:
        self._options, self._llm, self._report, self._repeat = options, llm, report, repeat
        self._verifier, self._peer = verifier, peer
        count = counter(llm)
        self._secrets = [f"secret{repeat}x{number}x" for number in range(options.sessions)]
        self._talks: list[list[Message]] = []
        for secret in self._secrets:
            message = system_message(secret, options.system_tokens, count)
            self._talks.append([{**message, "content": f"{secret} {message['content']}"}])
        self._peer_talks = [[*talk] for talk in self._talks]
        llm.reset()
        if peer is not None:
            peer.ask("reset")

    def play(self) -> list[list[dict[str, Any]]]:
        """Play all turns; return, for each turn, a record for each session."""
        sessions = range(self._options.sessions)
        return [
            [self._turn(number, session) for session in sessions]
            for number in range(self._options.turns)
        ]

    def _turn(self, number: int, session: int) -> dict[str, Any]:
        options, talk = self._options, self._talks[session]
        name = f"{self._repeat}/{session}/{number}"
        question = user_message(name, options.user_tokens, counter(self._llm))
        talk.append(question)
        settings = {"user": self._secrets[session], "max_tokens": options.max_tokens}
        turn = chat(self._llm, talk, clock=clock_of(options), **settings)
        talk.append({"role": "assistant", "content": turn.text})
        record: dict[str, Any] = {"turn": turn}
        if self._peer is not None:
            record["peer"] = self._ask_peer(self._peer, session, question)
        record["nmse"], record["cold_prompt"] = self._verifier.check(turn)
        self._judge(record, number, session)
        return record

    def _ask_peer(self, peer: Peer, session: int, question: Message) -> dict[str, Any]:
        talk = self._peer_talks[session]
        talk.append(question)
        answer = peer.ask(
            "chat", messages=talk, temperature=0.0, max_tokens=self._options.max_tokens
        )
        talk.append({"role": "assistant", "content": answer["text"]})
        return answer

    def _judge(self, record: dict[str, Any], number: int, session: int) -> None:
        turn: Turn = record["turn"]
        place = f"repeat {self._repeat + 1}, turn {number + 1}, session {session + 1}"
        if record["nmse"] > self._verifier.tolerance:
            self._report.fail(f"{place}: logits differ from a cold evaluation, {record['nmse']}")
        text = self._llm.detokenize(turn.tokens, special=True).decode("utf-8", "replace")
        leaked = [s for s in self._secrets if s in text and s != self._secrets[session]]
        if leaked or self._secrets[session] not in text:
            self._report.fail(f"{place}: the prompt in memory is not this session's")


def _show(report: Report, measured: list[list[list[dict[str, Any]]]], with_peer: bool) -> None:
    columns = ["turn", "prompt", "evaluated", "reused", "ms", "cold prompt ms"]
    columns += ["peer ms", "ours/peer"] if with_peer else []
    table = report.table("", *columns, "path", "nmse")
    for number, rounds in enumerate(zip(*measured, strict=True), 1):
        records = [record for sessions in rounds for record in sessions]
        ours = [_mean(sessions, "turn") for sessions in rounds]
        cells: list[float] = []
        if with_peer:
            theirs = [_mean(sessions, "peer") for sessions in rounds]
            share = median(ratios(ours, theirs))
            cells = [1e3 * median(theirs), share]
            if number == 5:
                report.at_most("turn 5, time by llama-cpp-python's", share, 0.25)
        last: Turn = records[-1]["turn"]
        counts = len(last.tokens), last.evaluated, last.reused
        times = median(ours), median([record["cold_prompt"] for record in records])
        worst = max(record["nmse"] for record in records)
        table.add(number, *counts, *(1e3 * t for t in times), *cells, last.info["path"], worst)


def _mean(sessions: list[dict[str, Any]], side: str) -> float:
    seconds: list[float] = [
        record["turn"].seconds if side == "turn" else record["peer"]["seconds"]
        for record in sessions
    ]
    return sum(seconds) / len(seconds)
