"""``llama-py bench transcript``: writes a synthetic transcript of a coding agent.

Nothing private is needed to measure reuse: what an agent sends is mostly what tools gave back. The
transcript has several system parts, tools, files that were read, findings of a linter, edits, calls
side by side, and questions in between. The same size and seed give the same file.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["main", "make", "render"]

Message = dict[str, Any]

_NAMES = "cart order user index cache token price route queue parser session buffer".split()  # noqa: SIM905
_VERBS = "load check merge render update split count verify collect resolve".split()  # noqa: SIM905
_RULES = {
    "E501": "line too long ({} > 88)",
    "F401": "'{}' imported but unused",
    "F841": "local variable '{}' is assigned to but never used",
    "W291": "trailing whitespace after '{}'",
}
_ASKS = (
    "The build fails since yesterday. Please find out why and fix it.",
    "Thanks. Now look at the tests next to it, they are slow.",
    "Please make the linter happy as well.",
    "What did you change so far? Go on afterwards.",
    "One more thing: the names in that module are confusing.",
)
_SYSTEM = (
    "You are an agent that works in a repository. Read before you write, keep changes small, and "
    "say what you did in a sentence.",
    "Tools run in a sandbox. A path is relative to the root of the repository. Do not touch files "
    "outside of it, and ask before you delete anything.",
    "The repository is a shop: Python, about 40 modules, tests with pytest, ruff as the linter.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a transcript; returns the exit code."""
    parser = argparse.ArgumentParser(prog="llama-py bench transcript", description=__doc__)
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
        print("llama-py bench transcript: --characters must be 1000 at least", file=sys.stderr)
        return 2
    text = render(make(options.characters, options.seed), options.format)
    if options.out == "-":
        sys.stdout.write(text)
    else:
        Path(options.out).write_text(text, encoding="utf-8")
    return 0


def make(characters: int, seed: int) -> list[Message]:
    """OpenAI messages with about so many characters, tools' definitions aside."""
    agent = _Agent(seed)
    while agent.size < characters:
        agent.turn(characters)
    return agent.messages


def render(messages: Sequence[Message], form: str) -> str:
    """The text of a file with these messages."""
    if form == "openai":
        return json.dumps({"tools": TOOLS, "messages": messages}, indent=1) + "\n"
    lines = [json.dumps(record) for record in _records(messages)]
    return "\n".join(lines) + "\n"


class _Agent:
    """Grows a conversation, turn by turn."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"agent {seed}")
        self._calls = 0
        self.messages: list[Message] = [{"role": "system", "content": part} for part in _SYSTEM]
        self._asked = 0

    @property
    def size(self) -> int:
        """Characters until now."""
        return sum(len(message["content"] or "") for message in self.messages)

    def turn(self, characters: int) -> None:
        """A question, and what the agent does about it."""
        ask = _ASKS[self._asked % len(_ASKS)]
        self._asked += 1
        self.messages.append({"role": "user", "content": ask})
        for _ in range(self._random.randint(2, 4)):
            if self.size < characters:
                self._step(max(200, min(4000, (characters - self.size) // 2)))
        self.messages.append({"role": "assistant", "content": self._summary()})

    def _step(self, room: int) -> None:
        """Calls, one or two at once, and their results."""
        kinds = self._random.choice([["read"], ["lint"], ["edit"], ["read", "lint"], ["read"] * 2])
        calls, results = [], []
        for kind in kinds:
            name, arguments, result = getattr(self, f"_{kind}")(room // len(kinds))
            self._calls += 1
            call_id = f"call_{self._calls:04d}"
            function = {"name": name, "arguments": json.dumps(arguments)}
            calls.append({"id": call_id, "type": "function", "function": function})
            results.append({"role": "tool", "tool_call_id": call_id, "content": result})
        spoken = self._random.choice(["", "Let me look.", "I will check that."])
        self.messages.append({"role": "assistant", "content": spoken, "tool_calls": calls})
        self.messages += results

    def _path(self) -> str:
        return f"shop/{self._random.choice(_NAMES)}_{self._random.choice(_NAMES)}.py"

    def _read(self, room: int) -> tuple[str, dict[str, Any], str]:
        lines: list[str] = []
        while sum(map(len, lines)) < room:
            verb, name = self._random.choice(_VERBS), self._random.choice(_NAMES)
            lines += [f"def {verb}_{name}(self, {name}: int) -> int:"]
            lines += [f"    # {self._random.choice(_ASKS)}", f"    {verb} = {name} + 1"]
            lines += [
                f"    return self.{verb}s[{verb}] if {name} else {self._random.randint(0, 99)}"
            ]
        numbered = [f"{number:5d}  {line}" for number, line in enumerate(lines, 1)]
        return "read_file", {"path": self._path()}, "\n".join(numbered)

    def _lint(self, room: int) -> tuple[str, dict[str, Any], str]:
        path = self._path()
        lines: list[str] = []
        while sum(map(len, lines)) < room:
            rule = self._random.choice([*_RULES])
            what = _RULES[rule].format(self._random.choice([*_NAMES, "101", "93"]))
            line, column = self._random.randint(1, 400), self._random.randint(1, 80)
            lines.append(f"{path}:{line}:{column}: {rule} {what}")
        return "lint", {"paths": [path]}, "\n".join(lines)

    def _edit(self, _room: int) -> tuple[str, dict[str, Any], str]:
        name = self._random.choice(_NAMES)
        change = {"path": self._path(), "old": f"{name} + 1", "new": f"{name} + {name}.step"}
        return "edit_file", change, f"ok: 1 replacement in {change['path']}"

    def _summary(self) -> str:
        name, verb = self._random.choice(_NAMES), self._random.choice(_VERBS)
        return f"I changed `{verb}_{name}` and ran the linter; nothing else needed an edit."


def _tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


_TEXT = {"type": "string"}
TOOLS = [
    _tool("read_file", "Read a file; lines come with their numbers.", path=_TEXT),
    _tool("edit_file", "Replace one text by another in a file.", path=_TEXT, old=_TEXT, new=_TEXT),
    _tool("lint", "Run the linter on files.", paths={"type": "array", "items": _TEXT}),
]


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
