"""Synthetic conversations of a coding agent.

Nothing private is needed to measure reuse: what an agent sends is mostly what tools gave back. A
conversation has several system parts, tools, files that were read, findings of a linter, edits,
calls side by side, and questions in between. The same size and seed give the same messages.
"""

from __future__ import annotations

import json
import random
from typing import Any

__all__ = ["TOOLS", "make"]

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


def make(characters: int, seed: int) -> list[Message]:
    """OpenAI messages with about this many characters, tools' definitions aside."""
    agent = _Agent(seed)
    while agent.size < characters:
        agent.turn(characters)
    return agent.messages


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
