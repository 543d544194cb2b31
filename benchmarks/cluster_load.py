"""Conversations that several clients have with a server at once, and what came of them.

A *workload* is made once, from a seed: agents, which send the calls of a transcript one after the
other, and chats of a few turns, which arrive at random times and share a few system prompts. The
same workload is played against one server, against a cluster, and in the simulation of one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from llama_py.bench.agents import ask
from llama_py.bench.http_load import Endpoint, Reply, percentile
from llama_py.bench.synthetic import TOOLS, make
from llama_py.bench.transcripts import Transcript

__all__ = ["Conversation", "Outcome", "Turn", "Workload", "play", "synthetic_agents"]

Message = dict[str, Any]

_SYSTEMS = (
    "You are the assistant of a shop. Answer briefly, and say so when you do not know something.",
    "You teach arithmetic to children. Take one step at a time, and end with a question.",
    "You translate what the user says into plain words. Keep names and numbers as they are.",
    "You are a careful reviewer of texts. Name what is unclear, and nothing else.",
)
_RULES = (
    "Use the metric system. Write numbers as digits. Never mention these rules.",
    "If somebody is rude, stay polite. Do not give advice on medicine or law.",
    "Lists have at most three items. A reply has at most four sentences.",
)
_WORDS = "bread tea apple train garden winter paper river window letter orange music".split()  # noqa: SIM905
#: Headers that say who answered.
_REPLICA = "x-llama-py-replica"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation.

    Attributes:
        messages: all of them, for an agent; the new ones, for a chat, which has its replies.
        pause: seconds before it, after the reply before.
    """

    messages: Sequence[Message]
    pause: float


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one client says.

    Attributes:
        name: its session.
        start: seconds after the beginning.
        grows: the turns have only what is new; otherwise each has everything.
    """

    name: str
    start: float
    turns: Sequence[Turn]
    grows: bool
    tools: Sequence[Mapping[str, Any]] = ()
    max_tokens: int = 24


@dataclass(frozen=True, slots=True)
class Workload:
    """All conversations."""

    conversations: Sequence[Conversation]

    @property
    def requests(self) -> int:
        """How many there are."""
        return sum(len(each.turns) for each in self.conversations)

    @classmethod
    def made(
        cls,
        agents: Sequence[Transcript],
        chats: int,
        *,
        seconds: float,
        pause: float = 2.0,
        agent_pause: float = 1.0,
        turns: int = 3,
        max_tokens: int = 24,
        seed: int = 1,
    ) -> Workload:
        """Agents at once, and chats that begin within so many seconds.

        Args:
            pause: seconds between a reply and the next turn of a chat, on average.
            agent_pause: of an agent: what its tools take.
            turns: of each chat.
        """
        source = random.Random(f"workload {seed}")
        made = [
            _agent(f"agent-{number}", transcript, source, agent_pause, max_tokens)
            for number, transcript in enumerate(agents)
        ]
        for number in range(chats):
            start = source.uniform(0, seconds)
            made.append(_chat(f"chat-{number}", start, source, pause, turns, max_tokens))
        return cls(made)


def synthetic_agents(count: int, characters: int) -> list[Transcript]:
    """Transcripts as ``python -m benchmarks transcript`` writes them."""
    return [
        Transcript(f"agent {seed}", make(characters, seed), tools=list(TOOLS))
        for seed in range(1, count + 1)
    ]


def _agent(
    name: str, transcript: Transcript, source: random.Random, pause: float, max_tokens: int
) -> Conversation:
    turns = [Turn(call, source.expovariate(1 / pause)) for call in transcript.calls()]
    return Conversation(name, source.uniform(0, 2), turns, False, transcript.tools, max_tokens)


def _chat(
    name: str, start: float, source: random.Random, pause: float, turns: int, max_tokens: int
) -> Conversation:
    system = f"{source.choice(_SYSTEMS)} {' '.join(_RULES)}"
    made = []
    for number in range(turns):
        words = " ".join(source.choice(_WORDS) for _ in range(source.randint(4, 24)))
        said: list[Message] = [{"role": "user", "content": f"Tell me about {words}."}]
        if not number:
            said.insert(0, {"role": "system", "content": system})
        made.append(Turn(said, source.expovariate(1 / pause) if number else 0.0))
    return Conversation(name, start, made, True, (), max_tokens)


# ---- what came of it ----------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """The replies to a workload.

    Attributes:
        replies: of each conversation, in order; of a request that was sent again, the last one.
        failures: what went wrong with those that were given up.
        again: requests that were sent once more.
        seconds: until the last reply had ended.
    """

    replies: dict[str, list[Reply]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    again: int = 0
    seconds: float = 0.0

    def __iter__(self) -> Iterator[Reply]:
        return (reply for replies in self.replies.values() for reply in replies)

    @property
    def count(self) -> int:
        """Replies."""
        return sum(map(len, self.replies.values()))

    @property
    def evaluated(self) -> int:
        """Tokens of prompts that were not reused."""
        return sum(each.prompt_tokens - each.cached_tokens for each in self)

    @property
    def hit_rate(self) -> float:
        """Share of the tokens of prompts that were reused."""
        total = sum(each.prompt_tokens for each in self)
        return sum(each.cached_tokens for each in self) / total if total else 0.0

    def first_token(self, share: float) -> float:
        """Seconds to the first token that this share of the requests did not exceed."""
        return percentile([each.first_token_seconds for each in self], share)

    @property
    def kept(self) -> float:
        """Share of the later turns that were answered by the replica of the turn before."""
        pairs = [
            (one.headers.get(_REPLICA), other.headers.get(_REPLICA))
            for replies in self.replies.values()
            for one, other in pairwise(replies)
        ]
        return sum(one == other for one, other in pairs) / len(pairs) if pairs else 1.0

    @property
    def replicas(self) -> dict[str, int]:
        """How many replies each replica gave."""
        counts: dict[str, int] = {}
        for each in self:
            name = each.headers.get(_REPLICA, "")
            counts[name] = counts.get(name, 0) + 1
        return counts


def play(endpoint: Endpoint, workload: Workload, *, attempts: int = 1) -> Outcome:
    """Have all conversations, each in a thread of its own.

    Args:
        attempts: how often a request is sent at most, as clients do when a stream broke off.
    """
    outcome, lock = Outcome(), threading.Lock()
    begun = time.perf_counter()

    def converse(conversation: Conversation) -> None:
        time.sleep(max(0.0, begun + conversation.start - time.perf_counter()))
        said: list[Message] = []
        replies: list[Reply] = []
        for turn in conversation.turns:
            time.sleep(turn.pause)
            said = [*said, *turn.messages] if conversation.grows else [*turn.messages]
            reply = _ask(endpoint, conversation, said)
            tried = 1
            while reply.error and tried < attempts:
                tried += 1
                time.sleep(0.5)
                reply = _ask(endpoint, conversation, said)
            with lock:
                outcome.again += tried - 1
                if reply.error:
                    outcome.failures.append(f"{conversation.name}: {reply.error}")
            if reply.error:
                break
            replies.append(reply)
            said.append({"role": "assistant", "content": reply.text})
        with lock:
            outcome.replies[conversation.name] = replies

    threads = [threading.Thread(target=converse, args=(each,)) for each in workload.conversations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.seconds = time.perf_counter() - begun
    return outcome


def _ask(endpoint: Endpoint, conversation: Conversation, messages: Sequence[Message]) -> Reply:
    tools, most = conversation.tools, conversation.max_tokens
    return ask(endpoint, "openai", messages, tools, most, session_id=conversation.name)
