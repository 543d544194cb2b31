"""``page``: the description as HTML, for people. No scripts, and nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from llama_py.options.describe import limits_in_words
from llama_py.server.openapi.schemas import Schema
from llama_py.server.operations import Operation, Operations

__all__ = ["page"]

_HEAD = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>llama_py: the API</title>
<link rel="stylesheet" href="docs.css">
</head>
<body>
<main>
"""
_FOOT = "</main>\n</body>\n</html>\n"
_CODE = re.compile(r"`([^`]*)`")
#: What a value may be, in words, by its type.
_WORDS = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "true or false",
    "object": "object",
    "null": "null",
}


def page(described: Mapping[str, Any], operations: Operations) -> str:
    """The page.

    Args:
        described: the OpenAPI document of these operations.
    """
    info = described["info"]
    names = [*dict.fromkeys(each["name"] for each in described["tags"]), "Bodies"]
    parts = [
        _HEAD,
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>\n",
        f"<p>{_text(info['description'])} For programs: "
        '<a href="openapi.json">openapi.json</a>.</p>\n',
        "<p>A server that has API keys wants one of them with each call, as <code>Authorization: "
        "Bearer KEY</code> or <code>x-api-key: KEY</code>.</p>\n<nav>\n<ul>\n",
        *(f'<li><a href="#{_anchor(name)}">{escape(name)}</a></li>\n' for name in names),
        "</ul>\n</nav>\n",
    ]
    for tag in described["tags"]:
        parts.append(f'<section id="{_anchor(tag["name"])}">\n<h2>{escape(tag["name"])}</h2>\n')
        parts.append(f"<p>{_text(tag['description'])}</p>\n")
        for each in operations.described:
            if each.tag == tag["name"]:
                parts += _operation(each, described)
        parts.append("</section>\n")
    parts += _components(described)
    return "".join([*parts, _FOOT])


# ---- operations ----------------------------------------------------------------------------------


def _operation(operation: Operation, described: Mapping[str, Any]) -> Iterator[str]:
    own = operation.paths[0]
    details: Mapping[str, Any] = described["paths"][own][operation.method.lower()]
    yield f'<details class="operation" id="{escape(details["operationId"])}">\n<summary>'
    yield f'<span class="method {operation.method.lower()}">{operation.method}</span> '
    yield f"<code>{escape(own)}</code> {_text(operation.summary)}</summary>\n"
    if operation.text:
        yield f"<p>{_text(operation.text)}</p>\n"
    if len(operation.paths) > 1:
        others = ", ".join(f"<code>{escape(path)}</code>" for path in operation.paths[1:])
        yield f"<p>Also at {others}.</p>\n"
    for each in details.get("parameters", ()):
        text = each.get("description", "a part of the path")
        yield f"<p><code>{escape(each['name'])}</code>: {_text(text)}</p>\n"
    if operation.body is not None:
        yield f"<p>Takes {_link(operation.body)}, as JSON.</p>\n"
    if operation.reply is not None:
        yield f"<p>Answers with {_link(operation.reply)}.</p>\n"
    if operation.events:
        yield f"<p>With <code>stream</code>: {_text(operation.events)}</p>\n"
    errors = {status: each for status, each in details["responses"].items() if status != "200"}
    if errors:
        yield "<table>\n<thead><tr><th>status</th><th>why</th></tr></thead>\n<tbody>\n"
        for status, each in errors.items():
            yield f"<tr><td>{status}</td><td>{escape(each['description'])}</td></tr>\n"
        yield "</tbody>\n</table>\n"
    yield "</details>\n"


# ---- bodies --------------------------------------------------------------------------------------


def _components(described: Mapping[str, Any]) -> Iterator[str]:
    schemas: Mapping[str, Schema] = described["components"]["schemas"]
    # Those that something refers to which is on the page.
    needed: set[str] = set()
    new = set(_references(described["paths"]))
    while new:
        needed |= new
        new = {each for name in new for each in _references(schemas[name])} - needed
    yield '<section id="bodies">\n<h2>Bodies</h2>\n'
    for name in sorted(needed & schemas.keys()):
        yield f'<details class="schema" id="{escape(name)}">\n'
        yield f"<summary><code>{escape(name)}</code></summary>\n"
        yield from _schema(schemas[name])
        yield "</details>\n"
    yield "</section>\n"


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "$ref" in value:
            yield _name_of(value)
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def _schema(schema: Schema) -> Iterator[str]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    if not properties:
        yield f"<p>{_kind(schema)}</p>\n"
        return
    required = schema.get("required", ())
    yield "<table>\n<thead><tr><th>field</th><th>value</th><th>default</th><th>meaning</th></tr>"
    yield "</thead>\n<tbody>\n"
    for name, each in properties.items():
        mark = ' <strong title="required">*</strong>' if name in required else ""
        default = f"<code>{escape(json.dumps(each['default']))}</code>" if "default" in each else ""
        cells = (
            f"<code>{escape(name)}</code>{mark}",
            _kind(each),
            default,
            _text(each.get("description", "")),
        )
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n"
    yield "</tbody>\n</table>\n"


def _kind(schema: Schema) -> str:
    """What a value may be, in words, as HTML."""
    if "$ref" in schema:
        return _link(_name_of(schema))
    if "anyOf" in schema:
        return _either(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return _either(f"<code>{escape(json.dumps(each))}</code>" for each in schema["enum"])
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if len(kinds) > 1:  # null is the same as not given
        kinds = [kind for kind in kinds if kind != "null"]
    words = [
        f"list of {_kind(schema.get('items', {}))}" if kind == "array" else _WORDS[kind]
        for kind in kinds
    ]
    limits = limits_in_words(schema.get("minimum"), schema.get("maximum"))
    return (_either(words) or "anything") + limits


def _either(words: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(words))


# ---- text ----------------------------------------------------------------------------------------


def _text(markdown: str) -> str:
    """A sentence with pieces of code in it, as HTML."""
    return _CODE.sub(r"<code>\1</code>", escape(markdown, quote=False))


def _link(name: str) -> str:
    return f'<a href="#{escape(name)}"><code>{escape(name)}</code></a>'


def _name_of(reference: Mapping[str, Any]) -> str:
    return str(reference["$ref"]).rsplit("/", 1)[-1]


def _anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower())
