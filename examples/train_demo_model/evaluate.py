"""Scores an exported model on dialogues that it was never trained on.

Owns: the table of skills and the six-turn chat. A reply counts only if it is exactly the
reference. The table runs greedy decoding on rendered prompts through `llama_py.core`
(`--public`: through `Llama.create_chat_completion`); the chat always takes the public way
and feeds the model its own replies.

    python evaluate.py MODEL.gguf [--count 200] [--seed 7531]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dialogues
from runner import Runner

SEED = 7531  # checkpoints were chosen with 2024
REQUIRED = 0.95

_CHAT = (
    ("Hello, my name is Vera.", "Vera"),
    ("What is 2 + 3?", "5"),
    ("Reverse this list: cat, dog, bird", "bird, dog, cat"),
    ("Count to 5.", "1, 2, 3, 4, 5"),
    ("Give me a JSON object with name Bob and age 7.", '{"name": "Bob", "age": 7}'),
    ("What is my name?", "Vera"),
)

Answer = Callable[[dialogues.Dialogue], str]


def fast(path: Path) -> Answer:
    """Replies from rendered prompts."""
    runner = Runner(path)

    def answer(dialogue: dialogues.Dialogue) -> str:
        return runner.reply(dialogues.render(dialogue.messages[:-1], dialogue.tools, prompt=True))

    return answer


def _openai_form(messages: list[dialogues.Json]) -> list[dialogues.Json]:
    """The messages with arguments as JSON text, as the API has them."""
    copied: list[dialogues.Json] = json.loads(json.dumps(messages))
    for message in copied:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return copied


def _as_text(message: dict[str, Any]) -> str:
    """A reply of the API in the form in which the model writes it."""
    parsed = dict(message, content=message.get("content") or "")
    calls = []
    for call in message.get("tool_calls") or ():
        try:
            arguments = json.loads(call["function"]["arguments"])
        except json.JSONDecodeError:  # a broken call: wrong in any case
            arguments = call["function"]["arguments"]
        calls.append({"function": {"name": call["function"]["name"], "arguments": arguments}})
    return dialogues.reply_text({**parsed, "tool_calls": calls})


def public(path: Path) -> Answer:
    """Replies from the chat API, which renders the template and parses tool calls itself."""
    from llama_py import Llama

    llama = Llama(str(path), n_ctx=2048, verbose=False)

    def answer(dialogue: dialogues.Dialogue) -> str:
        extra: dict[str, Any] = {"tools": dialogue.tools} if dialogue.tools else {}
        completion: Any = llama.create_chat_completion(
            messages=_openai_form(dialogue.messages[:-1]),
            temperature=0,
            max_tokens=120,
            **extra,
        )
        return _as_text(completion["choices"][0]["message"])

    return answer


def score(answer: Answer, skill: str, seed: int, count: int, show: int) -> float:
    """The share of exact replies; prints the first few that are not."""
    right = 0
    for dialogue in dialogues.held_out(seed, skill, count):
        expected, got = dialogues.reply_text(dialogue.messages[-1]), answer(dialogue)
        right += got == expected
        if got != expected and show > 0:
            show -= 1
            asked = dialogue.messages[-2]["content"]
            print(f"  {asked!r}\n    wanted {expected!r}\n    got    {got!r}", file=sys.stderr)
    return right / count


def table(answer: Answer, seed: int, count: int, show: int) -> bool:
    """Print a line for each skill; whether all are good enough."""
    print(f"{'skill':12} {'dialogues':>9} {'exact':>7}")
    shares = {}
    for skill in dialogues.SKILLS:
        shares[skill] = score(answer, skill, seed, count, show)
        print(f"{skill:12} {count:9} {100 * shares[skill]:6.1f}%", flush=True)
    return min(shares.values()) >= REQUIRED


def six_turns(path: Path) -> bool:
    """A chat whose last question is about its first line."""
    answer = public(path)
    messages: list[dialogues.Json] = []
    good = True
    for asked, part in _CHAT:
        messages.append({"role": "user", "content": asked})
        reply = answer(dialogues.Dialogue([*messages, {"role": "assistant"}], []))
        messages.append({"role": "assistant", "content": reply})
        good = good and part in reply
        print(f"> {asked}\n{reply}")
    return good


def main() -> None:
    """Read the command line, score, and fail if a skill falls short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--count", type=int, default=200, help="dialogues for each skill")
    parser.add_argument("--seed", type=int, default=SEED, help="of the held-out dialogues")
    parser.add_argument("--public", action="store_true", help="take the public chat API")
    parser.add_argument("--show", type=int, default=0, help="wrong replies to print for each skill")
    args = parser.parse_args()
    answer = public(args.model) if args.public else fast(args.model)
    passed = table(answer, args.seed, args.count, args.show)
    if not six_turns(args.model):
        sys.exit("the six-turn chat went wrong")
    if not passed:
        sys.exit(f"a skill is below {REQUIRED:.0%}")


if __name__ == "__main__":
    main()
