"""``python -m benchmarks transcript``: writes a synthetic transcript of a coding agent into a file.

``synthetic:CHARACTERS[:SEED]`` in the place of a file's name is the same without a file. The same
size and seed give the same file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_py.bench.synthetic import TOOLS, make

__all__ = ["main", "render"]

Message = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a transcript; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks transcript", description=__doc__)
    parser.add_argument("out", help="the file to write; - for standard output")
    parser.add_argument("--characters", type=int, default=20_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument(
        "--format",
        choices=["openai", "claude"],
        default="openai",
        help="OpenAI messages with tools, or records as Claude Code writes them, which have "
        "neither tools nor system messages (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.characters < 1000:
        print(f"{parser.prog}: --characters must be 1000 at least", file=sys.stderr)
        return 2
    text = render(make(options.characters, options.seed), options.format)
    if options.out == "-":
        sys.stdout.write(text)
    else:
        Path(options.out).write_text(text, encoding="utf-8")
    return 0


def render(messages: Sequence[Message], form: str) -> str:
    """The text of a file with these messages."""
    if form == "openai":
        return json.dumps({"tools": TOOLS, "messages": messages}, indent=1) + "\n"
    lines = [json.dumps(record) for record in _records(messages)]
    return "\n".join(lines) + "\n"


# ---- Claude Code's records ---------------------------------------------------------------------


def _records(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """One record for each block of an assistant's turn, as Claude Code writes them."""
    records: list[dict[str, Any]] = [{"type": "summary", "summary": "A synthetic session"}]
    for message in messages:
        if message["role"] == "system":
            continue
        role = "user" if message["role"] == "tool" else message["role"]
        for block in _blocks(message):
            number = len(records)
            records.append(
                {
                    "type": role,
                    "uuid": f"record-{number}",
                    "parentUuid": f"record-{number - 1}" if number > 1 else None,
                    "isSidechain": False,
                    "message": {"role": role, "content": [block]},
                }
            )
    return records


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        result = {"tool_use_id": message["tool_call_id"], "content": message["content"]}
        return [{"type": "tool_result", **result}]
    blocks: list[dict[str, Any]] = []
    if message["role"] == "assistant":
        blocks.append({"type": "thinking", "thinking": "What comes next?", "signature": "none"})
    if message["content"]:
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        given = json.loads(function["arguments"])
        block = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}
        blocks.append(block)
    return blocks
