"""``docs/fields.md``, from the tables in ``llama_py.dialects.known_fields``.

    python -m tools.field_tables

``page()`` is the whole text; a test compares it with the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from llama_py.dialects.known_fields import (
    IDLE,
    READ,
    REFUSED,
    RENAMED,
    Dialect,
    spelled,
)

PAGE = Path(__file__).parent.parent / "docs" / "fields.md"

_GENERATING = (
    Dialect.CHAT,
    Dialect.COMPLETION,
    Dialect.RESPONSES,
    Dialect.MESSAGES,
    Dialect.NATIVE,
)

_HEAD = """\
# Fields of other servers

Clients are written for many servers, and each has names of its own. A field that limits, constrains
or ends a reply is never ignored: the server honours it, or refuses the request with a 400 that says
what to use instead. Only fields that change nothing in what is generated are left out, and names
that no server knows (unless `strict` is set: then those are a 400, too).

* Two names of the same thing may both be there if they say the same. If they contradict each other,
  that is a 400.
* `null`, `false` and empty values ask for nothing, and are never refused.
* Errors name the field that the client sent.

This page is generated: `python -m tools.field_tables`.
"""
_OURS = """\
What each endpoint calls these; "–" means that it has no such thing. `/infill` is as `/completion`.
"""
_OF_RENAMED = """\
`format` is Ollama's (`"json"`, or a schema); `structured_outputs` may have `json`, `json_object`,
`choice` or `grammar`. Grammars are [GBNF](structured-output.md), whatever the field is called.
Where an endpoint has no such thing, the field is a 400. The names on the right are those in the
first column above.
"""
_OF_REFUSED = """\
Values in the last column are what other servers do by default, and are accepted.
"""
_OF_IDLE = """\
These are accepted at every endpoint, and change no reply: names, places, speed, what is reported,
and services that there are none of. `keep_alive` says how long the model stays in memory
([Ollama's API](ollama.md)).
"""
_SHARED = (
    *("max_tokens", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "timeout", "json_schema"),
    *("grammar", "temperature", "repeat_penalty", "penalty_last_n", "mirostat_mode", "logit_bias"),
    *("n", "n_probs", "enable_thinking", "reasoning_effort", "reasoning_budget"),
    *("chat_template_kwargs", "parallel_tool_calls"),
)


def page() -> str:
    """The text of the page."""
    return "\n".join(
        [
            _HEAD,
            _section(
                "Names here", _OURS, ["", *(f"`{each.value}`" for each in _GENERATING)], _own()
            ),
            _section("Honoured", _OF_RENAMED, ["field", "here"], _honoured()),
            _section("Refused", _OF_REFUSED, ["field", "what to do", "accepted"], _refused()),
            f"## Without effect\n\n{_OF_IDLE}\n{_code(sorted(IDLE))}.\n",
        ]
    )


def _section(title: str, text: str, head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"## {title}\n\n{text}\n{table}\n"


def _code(names: Iterable[object]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _own() -> list[list[str]]:
    return [[f"`{name}`", *(_name(each, name) for each in _GENERATING)] for name in _SHARED]


def _name(dialect: Dialect, name: str) -> str:
    own = spelled(dialect, name)
    return _code(own.split(", ")) if own else "–"


def _honoured() -> list[list[str]]:
    rows = {**RENAMED, **{name: here for name, (_, here) in READ.items()}}
    return [[f"`{name}`", _code(here.split(", "))] for name, here in sorted(rows.items())]


def _refused() -> list[list[str]]:
    return [
        [f"`{name}`", remedy, _code(nothing)] for name, (remedy, nothing) in sorted(REFUSED.items())
    ]


if __name__ == "__main__":
    PAGE.write_text(page())
