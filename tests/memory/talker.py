"""A process that holds a conversation and saves it to disk, until it is killed.

python -m tests.memory.talker MODEL DIRECTORY

Standard input has one line of JSON, the messages to begin with, and then a line for each turn: what
the user says. After each turn a line of JSON says what was evaluated. A line ``go on N SEED`` makes
it talk to itself for ``N`` turns.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from typing import Any

from llama_py import Llama, LlamaDiskCache, ReuseInfo

#: More than all of them write: an entry that had to go would have to be evaluated again.
CAPACITY = 4 << 30
OPTIONS: dict[str, Any] = {
    "n_ctx": 4096,
    "n_seq_max": 2,
    "n_threads": 1,
    "flash_attn": False,
    "type_k": 0,
    "type_v": 0,
}
N_REPLY = 16
#: A conversation of so many tokens is over, and another one begins.
LONGEST = 3000
WORDS = ("the", "quick", "brown", "fox", "writes", "a", "letter", "to", "you", "é", "漢字", "42")

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Turn:
    """What is known about a turn that ended.

    Attributes:
        messages: all of them, the reply included.
        tokens: what is in memory after it.
        generated: the tokens of the reply.
        logits: at its last position, as hexadecimal float32.
        cache: ``cache_info``.
    """

    messages: Messages
    tokens: list[int]
    generated: list[int]
    logits: str
    cache: ReuseInfo


def say(llm: Llama, messages: Messages, text: str) -> Turn:
    """The user says ``text``, and the model replies."""
    asked = [*messages, {"role": "user", "content": text}]
    answer = llm.create_chat_completion(asked, temperature=0.0, max_tokens=N_REPLY, ignore_eos=True)
    reply = answer["choices"][0]["message"]["content"] or ""
    request = llm.runtime.last.record
    return Turn(
        [*asked, {"role": "assistant", "content": reply}],
        request.tokens,
        request.generated,
        llm.last_logits.tobytes().hex(),
        llm.cache_info,
    )


def words(draw: random.Random, count: int) -> str:
    """Something to say."""
    return " ".join(draw.choice(WORDS) for _ in range(count))


def main(model: str, directory: str) -> None:
    """Do what standard input says."""
    llm = Llama(model, **OPTIONS)
    llm.set_cache(LlamaDiskCache(directory, CAPACITY))
    messages: Messages = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        texts = [line.strip()]
        if line.startswith("go on "):
            count, seed = map(int, line.split()[2:])
            draw = random.Random(seed)
            texts = [words(draw, draw.randrange(5, 60)) for _ in range(count)]
        for text in texts:
            turn = say(llm, messages, text)
            llm.cache.flush()
            messages = turn.messages if len(turn.tokens) < LONGEST else []
            print(json.dumps(vars(turn)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
