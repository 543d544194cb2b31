"""Six calls with a growing prefix, as agents send them: does a warm one come back empty?

The prompts have --sizes characters (lint-like results of tools, one more with each call), and are
asked first so that nothing can be reused, then with reuse.

Exit code 0 if an empty warm reply was reproduced, 1 if not, and 2 if a cold reply is empty, which
says nothing about reuse, or the benchmark could not run. --expect-fixed swaps 0 and 1.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from llama_py.bench.http_load import Reply
from llama_py.bench.report import Report
from llama_py.bench.synthetic import TOOLS, make
from llama_py.bench.targets import Target, add_target_arguments, open_target

__all__ = ["add_arguments", "prompts", "run"]

_SIZES = (130, 5_000, 10_000, 15_000, 20_000, 26_000)
Message = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(_SIZES), metavar="N")
    parser.add_argument("--max-tokens", type=int, default=16, metavar="N")
    parser.add_argument("--expect-fixed", action="store_true", help="0 if nothing was reproduced")


def run(options: argparse.Namespace) -> Report:
    report = Report("empty-reply", {"sizes": options.sizes, "dialect": options.dialect})
    with open_target(options) as target:
        cold, warm = (_ask_all(target, options, cold=cold) for cold in (True, False))
    table = report.table("", "characters", "prompt", "cached", "cold reply", "warm reply", "error")
    for size, one, other in zip(options.sizes, cold, warm, strict=True):
        lengths = len(one.text), len(other.text)
        wrong = one.error or other.error or "-"
        table.add(size, other.prompt_tokens, other.cached_tokens, *lengths, wrong)
    report.code = _verdict(cold, warm, expect_fixed=options.expect_fixed)
    return report


def _verdict(cold: Sequence[Reply], warm: Sequence[Reply], *, expect_fixed: bool) -> int:
    if any(reply.error or not reply.text for reply in cold):
        return 2
    reproduced = any(reply.error or not reply.text for reply in warm)
    return int(reproduced) if expect_fixed else int(not reproduced)


def _ask_all(target: Target, options: argparse.Namespace, *, cold: bool) -> list[Reply]:
    mark = target.forget()
    replies = []
    for messages in prompts(options.sizes):
        first = {**messages[0], "content": mark + messages[0]["content"]}
        replies.append(target.ask([first, *messages[1:]], TOOLS, options.max_tokens))
        if cold:
            mark = target.forget()
    return replies


def prompts(sizes: Sequence[int]) -> list[list[Message]]:
    """Conversations of about this many characters; each begins like the one before it."""
    asked = "Run the linter on all modules of the shop, and say what it found."
    question = {"role": "user", "content": asked}
    system = {"role": "system", "content": "You are an agent that works in a repository. Be brief."}
    messages: list[Message] = [system, question]
    made, found = [], _findings(max(sizes))
    for number, size in enumerate(sizes):
        room = size - sum(len(message["content"]) for message in messages)
        if room > 0 and number:
            call_id = f"call_{number:04d}"
            arguments = json.dumps({"paths": [f"shop/part_{number}"]})
            call = {"name": "lint", "arguments": arguments}
            called = [{"id": call_id, "type": "function", "function": call}]
            text, found = found[:room], found[room:]
            messages.append({"role": "assistant", "content": "", "tool_calls": called})
            messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        made.append([*messages])
    return made


def _findings(characters: int) -> str:
    """What linters and files say, as the tools of a synthetic session do."""
    text, seed = "", 0
    while len(text) < characters:
        results = [m["content"] for m in make(20_000, seed) if m["role"] == "tool"]
        text, seed = text + "\n".join(results) + "\n", seed + 1
    return text
