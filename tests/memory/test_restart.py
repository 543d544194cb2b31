"""Conversations that outlive their process: it is killed, and the next one goes on.

The state of a conversation is written when it grew by 48 tokens, before the turn's last event is
handed out. So whoever has seen a reply may kill the process: at most 48 tokens, and the reply if it
was no text, are evaluated again.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from llama_py import Llama, LlamaDiskCache
from tests.memory.oracle import Oracle, nmse
from tests.memory.talker import CAPACITY, OPTIONS, Messages, Turn, say, words
from tests.models import KINDS, tiny_model

ROOT = Path(__file__).parents[2]
#: Noise of one-token against many-token steps; a lost cell is above 1e-3.
CLOSE = 1e-9
#: What may be evaluated again after a restart, beside what is new.
AGAIN = 64
#: Kills at random moments, as many processes at a time, and the longest wait before one.
TOGETHER, WAIT = 5, 0.4


class Talker:
    """A process that talks, and is killed. It writes to a file, and so never waits for a reader."""

    def __init__(self, kind: str, store: Path, output: Path, messages: Messages) -> None:
        command = [sys.executable, "-m", "tests.memory.talker", str(tiny_model(kind)), str(store)]
        self.kind = kind
        self._output = output
        with output.open("w") as file:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=file, text=True
            )
        self.turns: list[Turn] = []
        self.tell(json.dumps(messages))

    def tell(self, line: str) -> None:
        """Send a line to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def say(self, text: str) -> Turn:
        """The user says ``text``; returns when there is a reply."""
        count = len(self.turns)
        self.tell(text)
        self.wait(count + 1)
        return self.turns[count]

    def wait(self, count: int) -> None:
        """Wait until ``count`` turns ended."""
        while len(self.turns) < count:
            assert self._process.poll() is None, "the process ended by itself"
            time.sleep(0.005)
            self._read()

    def kill(self) -> None:
        """SIGKILL, and read what it said before."""
        assert self._process.poll() is None, "the process ended by itself"
        self.close()
        self._read()

    def close(self) -> None:
        """Do not leave a process behind."""
        self._process.kill()
        self._process.communicate()

    def _read(self) -> None:
        """Read the lines that are complete."""
        lines = self._output.read_text("utf-8").split("\n")[:-1]
        self.turns += [Turn(**json.loads(line)) for line in lines[len(self.turns) :]]


def assert_right(kind: str, turn: Turn) -> None:
    """The reply and the logits are those of an empty context that evaluated the same tokens."""
    oracle = Oracle(tiny_model(kind), n_ctx=OPTIONS["n_ctx"])
    chunks = [turn.tokens[i : i + 1000] for i in range(0, len(turn.tokens), 1000)]
    expected, row = oracle.greedy(turn.tokens, len(turn.generated), chunks)
    oracle.close()
    found = np.frombuffer(bytes.fromhex(turn.logits), np.float32)
    assert nmse(found, row) < CLOSE, turn.cache
    assert turn.generated == expected, turn.cache


def assert_little_evaluated(before: Turn, turn: Turn) -> None:
    """Everything but the new tokens was restored, up to what a crash may cost."""
    held = len(before.tokens) + len(before.generated)
    new = len(turn.tokens) - held
    assert turn.cache["evaluated"] <= AGAIN + new, (turn.cache, held, new)
    if held > AGAIN:  # else nothing may have been written yet
        assert turn.cache["action"] == "load"
        assert turn.cache["restored_bytes"] > 0


@contextmanager
def talking(kind: str, store: Path, output: Path, messages: Messages) -> Iterator[Talker]:
    talker = Talker(kind, store, output, messages)
    try:
        yield talker
    finally:
        talker.close()


@pytest.mark.parametrize(
    ("kind", "last"), [*((kind, 60) for kind in KINDS), ("full", 3), ("hybrid", 3)]
)
def test_the_next_process_goes_on(tmp_path: Path, kind: str, last: int) -> None:
    """1,000 tokens in some turns, SIGKILL, another process, the next turn."""
    draw = random.Random(last)
    store = tmp_path / "store"
    with talking(kind, store, tmp_path / "first", []) as first:
        turn = first.say("Hello")
        while len(turn.tokens) < 1000:
            turn = first.say(words(draw, 50))
        before = first.say(words(draw, last))
        first.kill()
    with talking(kind, store, tmp_path / "second", before.messages) as second:
        turn = second.say("And then?")
        assert_little_evaluated(before, turn)
        assert_right(kind, turn)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.long)])
def test_killed_at_random_moments(tmp_path: Path, rounds: int) -> None:
    """Five kills a round while five processes evaluate and write into one directory.

    After each, the store opens, every entry can be read, and the next turn is right and cheap.
    """
    draw = random.Random(5)
    store = tmp_path / "store"
    chats: dict[str, Messages] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        talkers = [
            Talker(kind, store, tmp_path / f"{kind}-{number}", chats[kind]) for kind in KINDS
        ]
        try:
            for talker in talkers:
                talker.tell(f"go on 1000 {draw.randrange(1 << 30)}")
            for talker in draw.sample(talkers, TOGETHER):
                talker.wait(1)
                time.sleep(draw.uniform(0, WAIT))
                talker.kill()
        finally:
            for talker in talkers:
                talker.close()
        _read_everything(store)
        for talker in talkers:
            chats[talker.kind] = _go_on(talker, store)


def _read_everything(store: Path) -> None:
    """No file that is an entry is damaged, and no other file is left."""
    with LlamaDiskCache(str(store), CAPACITY) as cache:
        assert len(cache) > 0
        entries = list(cache._ledger.keys())
        assert all(cache.get(key) is not None for key in entries)
        assert cache.stats().damaged == 0
        assert {path.stem for path in store.rglob("*.state")} == set(entries)


def _go_on(talker: Talker, store: Path) -> Messages:
    """The next turn of a killed process's conversation; returns what to begin with again."""
    before = talker.turns[-1]
    with (
        LlamaDiskCache(str(store), CAPACITY) as cache,
        Llama(str(tiny_model(talker.kind)), **OPTIONS) as llm,
    ):
        llm.set_cache(cache)
        turn = say(llm, before.messages, "And then?")
        llm.set_cache(None)
    assert_little_evaluated(before, turn)
    assert_right(talker.kind, turn)
    return turn.messages if len(turn.tokens) < 1500 else []
