"""What Codex sends: requests as Codex CLI 0.163 makes them, with shorter texts.

The texts are made up; fields, kinds of items and of tools, and their order are Codex's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["HEADERS", "Codex", "output_of"]

Item = dict[str, Any]

HEADERS = {
    "originator": "codex_exec",
    "user-agent": "codex_exec/0.163.0 (Debian 12; x86_64) unknown",
    "session-id": "01a9-codex-session",
    "thread-id": "01a9-codex-session",
    "x-client-request-id": "01a9-codex-session",
    "accept": "text/event-stream",
}

_PATCH_GRAMMAR = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk
add_hunk: "*** Add File: " filename LF add_line+
filename: /(.+)/
add_line: "+" /(.*)/ LF
%import common.LF
"""


def function(name: str, description: str, **properties: str) -> Item:
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {key: {"type": kind} for key, kind in properties.items()},
            "required": [*properties][:1],
            "additionalProperties": False,
        },
    }


TOOLS: list[Item] = [
    function("exec_command", "Runs a command.", cmd="string", yield_time_ms="number"),
    function("write_stdin", "Writes to a running command.", session_id="number", chars="string"),
    {
        "type": "function",
        "name": "update_plan",
        "description": "Updates the plan.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {
                "explanation": {"type": "string"},
                "plan": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"step": {"type": "string"}, "status": {"type": "string"}},
                        "required": ["step", "status"],
                        "additionalProperties": False,
                    },
                },
            },
            "required": ["plan"],
            "additionalProperties": False,
        },
    },
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files. This is a FREEFORM tool.",
        "format": {"type": "grammar", "syntax": "lark", "definition": _PATCH_GRAMMAR},
    },
    {"type": "web_search", "external_web_access": True},
    {"type": "image_generation", "output_format": "png"},
    {"type": "tool_search", "execution": "client", "description": "Finds tools."},
    {"type": "local_shell"},
    {
        "type": "namespace",
        "name": "mcp__weather__",
        "description": "Tools of the server weather.",
        "tools": [function("get_weather", "Get the weather of a city.", city="string")],
    },
]


def text(kind: str, *texts: str) -> list[Item]:
    return [{"type": kind, "text": text} for text in texts]


def message(role: str, *texts: str) -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": text(kind, *texts)}


class Codex:
    """A session: the requests that it makes, one after the other.

    Args:
        fields: of each request, in place of Codex's own.
    """

    def __init__(self, prompt: str, **fields: Any) -> None:
        self.items = [
            message("developer", "<permissions>You may read files.</permissions>"),
            message("developer", "<apps>None.</apps>", "<skills>None.</skills>"),
            message("user", "<environment_context><cwd>/src</cwd></environment_context>"),
            message("user", prompt),
        ]
        self._fields = fields

    def body(self) -> dict[str, Any]:
        """The next request."""
        return {
            "model": "gpt-5.2-codex",
            "input": [*self.items],
            "tools": TOOLS,
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "01a9-codex-session",
            "text": {"verbosity": "low"},
            "client_metadata": {"x-codex-installation-id": "00000000"},
            **self._fields,
        }

    def answered(
        self, output: Sequence[Item], *, results: str = "Chunk ID: 1\nOutput:\nok"
    ) -> None:
        """Take a reply into the history as Codex does, with the results of its calls."""
        self.items += [_replayed(item) for item in output]
        for item in output:
            if item["type"] == "function_call":
                self.items.append(output_of(item, results))
            elif item["type"] == "custom_tool_call":
                self.items.append({**output_of(item, results), "type": "custom_tool_call_output"})

    def say(self, prompt: str) -> None:
        """The next message of the user."""
        self.items.append(message("user", prompt))


def output_of(call: Item, result: Any) -> Item:
    """The result of a call: a text, or a list of parts."""
    return {"type": "function_call_output", "call_id": call["call_id"], "output": result}


def _replayed(item: Item) -> Item:
    """An item of a reply as Codex sends it back: without ``id`` and ``status``."""
    kept = {name: value for name, value in item.items() if name not in ("id", "status")}
    if kept["type"] == "reasoning":
        kept.setdefault("encrypted_content", None)
    if kept["type"] == "message":
        kept["content"] = text("output_text", *(part["text"] for part in kept["content"]))
    return kept
