"""What Claude Code sends, as it was seen on the wire, with short texts in place of its long ones.

From request to request it moves ``cache_control``, changes a header within the system prompt, and
sends a system message as blocks once and as a string from then on. Nothing of that may cost a
client its cache.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FAMILIAR", "PICTURE", "TOOLS", "Session"]

Json = dict[str, Any]

CACHED: Json = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
PICTURE: Json = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}

_BILLING = "x-anthropic-billing-header: cc_version=2.1.330.1f;"
_DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
_LIMITS = {"exclusiveMinimum": 0, "maximum": 9007199254740991}


def _tool(name: str, properties: Json, *required: str, **more: Any) -> Json:
    schema = {
        **_DRAFT,
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }
    return {"name": name, "description": f"{name} something.", "input_schema": schema, **more}


_TEXT: Json = {"type": "string", "description": "What it says"}
_NUMBER: Json = {"type": "integer", **_LIMITS}
_EDIT: Json = {
    "type": "object",
    "properties": {
        "header": {"type": "string", "maxLength": 12},
        "multiSelect": {"type": "boolean", "default": False},
        "options": {"type": "array", "minItems": 2, "maxItems": 4, "items": _TEXT},
    },
    "required": ["header", "options"],
    "additionalProperties": False,
}

TOOLS: list[Json] = [
    _tool("Bash", {"command": _TEXT, "timeout": {"type": "number"}}, "command"),
    _tool("Read", {"file_path": _TEXT, "offset": _NUMBER, "limit": _NUMBER}, "file_path"),
    _tool("Write", {"file_path": _TEXT, "content": _TEXT}, "file_path", "content"),
    _tool(
        "Edit",
        {"file_path": _TEXT, "old_string": _TEXT, "replace_all": {"type": "boolean"}},
        "file_path",
    ),
    _tool("Glob", {"pattern": _TEXT, "path": _TEXT}, "pattern"),
    _tool("Grep", {"pattern": _TEXT, "-A": _NUMBER, "type": {"enum": ["py", "c"]}}, "pattern"),
    _tool("WebFetch", {"url": {"type": "string", "format": "uri"}, "prompt": _TEXT}, "url"),
    _tool("Agent", {"prompt": _TEXT, "isolation": {"const": "worktree"}}, "prompt"),
    _tool("AskUserQuestion", {"questions": {"type": "array", "items": _EDIT}}, "questions"),
    _tool("Cron", {"when": {"type": "string", "pattern": "^(\\S+\\s+){4}\\S+$"}}, "when"),
    _tool(
        "Meta", {"extra": {"type": "object", "propertyNames": _TEXT, "additionalProperties": {}}}
    ),
    _tool("Later", {"query": {"anyOf": [_TEXT, {"type": "null"}]}}, "query", defer_loading=True),
]


#: One that the bundled model knows how to call, beside one that it does not.
FAMILIAR = [
    {**_tool("get_weather", {"city": _TEXT}, "city"), "description": "Get the weather of a city."},
    TOOLS[-1],
]


@dataclass
class Session:
    """One conversation of Claude Code.

    Attributes:
        messages: what was said, without the marks that differ between requests.
    """

    session_id: str = "0d5bfb9c-31a3-4d9b-93b0-9a3a7c4c2f11"
    messages: list[Json] = field(default_factory=list)
    tools: Sequence[Json] = field(default_factory=lambda: TOOLS)
    _requests: Any = field(default_factory=itertools.count)

    def ask(self, text: str) -> None:
        """The user types something; a reminder goes before it, and a note behind."""
        reminder = "<system-reminder>\nToday is Monday.\n</system-reminder>\n"
        content = [{"type": "text", "text": reminder}, {"type": "text", "text": text}]
        self.messages.append({"role": "user", "content": content})
        self.messages.append({"role": "system", "content": "The user has opened a file."})

    def answered(self, content: Any) -> None:
        """What the model said goes into the history as it came."""
        self.messages.append({"role": "assistant", "content": content})

    def results(self, content: Any) -> None:
        """The results of all calls in the last message, each with this content."""
        calls = [block for block in self.messages[-1]["content"] if block["type"] == "tool_use"]
        blocks = [
            {
                "type": "tool_result",
                "tool_use_id": call["id"],
                "content": content,
                "is_error": False,
            }
            for call in calls
        ]
        self.messages.append({"role": "user", "content": blocks})

    @property
    def headers(self) -> dict[str, str]:
        """Those of every request."""
        return {
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
            "authorization": "Bearer none",
            "x-claude-code-session-id": self.session_id,
            "x-stainless-timeout": "600",
        }

    def body(self, **changes: Any) -> Json:
        """The next request."""
        number = next(self._requests)
        return {
            "model": "claude-sonnet-4-5",
            "max_tokens": 32000,
            "stream": True,
            "system": self._system(number),
            "messages": self._marked(),
            "tools": copy.deepcopy([*self.tools]),
            "metadata": {"user_id": self._user_id()},
            "thinking": {"type": "adaptive", "display": "omitted"},
            "output_config": {"effort": "medium"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "temperature": 0,
            **changes,
        }

    def _user_id(self) -> str:
        ids = {"device_id": "d" * 64, "account_uuid": "", "session_id": self.session_id}
        return json.dumps(ids)

    def _system(self, number: int) -> Any:
        billing = f"{_BILLING} cc_entrypoint=cli; cch={number:05x};"
        texts = ["You are Claude Code.", "\nYou help with code. Be brief."]
        if number % 3 == 2:  # as gateways in between send it
            return "\n".join([billing, *texts])
        blocks: list[Json] = [{"type": "text", "text": text} for text in (billing, *texts)]
        blocks[1 + number % 2].update(CACHED)
        return blocks

    def _marked(self) -> list[Json]:
        """The messages as they are sent now: the last ones as blocks, with marks for the cache."""
        messages = copy.deepcopy(self.messages)
        for message in messages[-2:]:
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
            message["content"][-1].update(CACHED)
        return messages

    def title(self) -> Json:
        """A side request of the same session: a name for the conversation."""
        text = "Write a title for what follows.\n" + json.dumps(self.messages[:1])[:200]
        return {
            "model": "claude-haiku-4-5",
            "max_tokens": 32000,
            "stream": True,
            "system": [{"type": "text", "text": "You write titles."}],
            "messages": [{"role": "user", "content": text}],
            "tools": [],
            "metadata": {"user_id": self._user_id()},
            "thinking": {"type": "disabled"},
            "temperature": 0,
        }
