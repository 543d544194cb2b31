"""Properties in GBNF grammars in the order of the schema.

llama.cpp's converter puts the required properties of an object first. A model writes properties in
the order in which the schema (or the tool's description) lists them. ``in_order`` rewrites the
rules of objects in which these two orders differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from llama_py.chat.grammars.gbnf import free_name

__all__ = ["in_order"]

_COMMA = ' "," space '
#: An object with required properties and others, as llama.cpp's converter writes it.
_OBJECT = re.compile(r'^([\w-]+) ::= "\{" space (.+) \( "," space \( (.+) \) \)\? space "\}"$')
#: The rule of a property: its name, and the literal JSON string in it.
_PROPERTY = re.compile(r'^([\w-]+) ::= "((?:[^"\\]|\\.)*)" space ":" space ')
_ESCAPES = {"n": "\n", "r": "\r"}

#: The names that are required, and the others -> all of them in order, None if schemas differ.
_Orders = dict[tuple[frozenset[str], frozenset[str]], tuple[str, ...] | None]


def in_order(grammar: str, schemas: Iterable[Any]) -> str:
    """The grammar, with properties in the order in which one of these schemas lists them.

    Args:
        grammar: as llama.cpp writes it.
        schemas: those that the grammar was made from. If they list the properties of an object in
            two different orders, its rules are not changed.
    """
    orders: _Orders = {}
    for schema in schemas:
        _read_orders(schema, orders)
    if not any(orders.values()):
        return grammar
    lines = grammar.split("\n")
    names = {}
    for match in filter(None, map(_PROPERTY.match, lines)):
        text = re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), match[2])
        try:
            names[match[1]] = str(json.loads(text))
        except ValueError:  # no property: a piece of some other format
            names[match[1]] = text
    taken = {line.split(" ", 1)[0] for line in lines}
    return "\n".join(_ordered(line, names, orders, taken) for line in lines)


def _read_orders(node: Any, orders: _Orders) -> None:
    if isinstance(node, list):
        for part in node:
            _read_orders(part, orders)
    if not isinstance(node, Mapping):
        return
    for part in node.values():
        _read_orders(part, orders)
    properties, required = node.get("properties"), node.get("required")
    if isinstance(properties, Mapping) and isinstance(required, list) and required:
        names = tuple(properties)
        wanted = frozenset(name for name in names if name in required)
        key = wanted, frozenset(names) - wanted
        order = names if key not in orders or orders[key] == names else None
        orders[key] = order


def _ordered(line: str, names: Mapping[str, str], orders: _Orders, taken: set[str]) -> str:
    match = _OBJECT.match(line)
    if match is None:
        return line
    required = match[2].split(_COMMA)
    others = [choice.split(" ", 1)[0] for choice in match[3].split(" | ")]
    extra = [rule for rule in others if rule not in names]
    others = [rule for rule in others if rule in names]
    if not all(rule in names for rule in required):
        return line
    rules = {names[rule]: rule for rule in (*required, *others)}
    order = orders.get((frozenset(names[r] for r in required), frozenset(names[r] for r in others)))
    if order is None or [rules[name] for name in order] == [*required, *others]:
        return line
    stem = free_name(f"{match[1]}-in-order", taken)
    # ``-first-N`` is the object from property N on, with none before it; ``-next-N`` has some.
    written = [f'{match[1]} ::= "{{" space {stem}-first-0 space "}}"']
    tail = "".join(f'( "," space {rule} )*' for rule in extra)
    may_be_first = True
    for i, rule in enumerate(rules[name] for name in order):
        rest = f"{stem}-next-{i + 1}" if i + 1 < len(order) else tail
        comma = f'"," space {rule}' if rule in required else f'( "," space {rule} )?'
        written.append(f"{stem}-next-{i} ::= {comma} {rest}")
        if may_be_first:
            other = "" if rule in required else f" | {stem}-first-{i + 1}"
            written.append(f"{stem}-first-{i} ::= {rule} {rest}{other}")
        may_be_first = may_be_first and rule not in required
    return "\n".join(written)
