"""The site's page ``reference.md``, from the signatures and docstrings of the public names.

``python -m tools.reference`` prints it; ``tools.site`` puts it beside the pages of ``docs``.

The public names are those of ``llama_py.__all__``, and the classes in ``REACHABLE``, which calls
return. Docstrings have Google's sections (``Args:``, ``Raises:``, ...).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from typing_extensions import is_typeddict

import llama_py
from llama_py import errors

__all__ = ["reference"]

#: What is documented first; the other classes follow in alphabetical order.
FIRST = ("Llama", "AsyncLlama", "ChatSession")
#: Classes that are not exported at the top, and that calls return.
REACHABLE = ("llama_py.api.sessions.session_reply:TurnStream",)

_HEAD = """\
# API reference

Written by `tools/reference.py` from signatures and docstrings.
Terms are explained in the [glossary](glossary.md).
"""
_SECTIONS = ("Args", "Attributes", "Example", "Raises", "Returns", "Yields")
#: Special methods that are worth a line when a class of ours defines them.
_SPECIAL = ("__iter__", "__len__", "__aiter__")


def reference() -> str:
    """The whole page."""
    exported = [(name, getattr(llama_py, name)) for name in llama_py.__all__]
    reached = [_load(path) for path in REACHABLE]
    known = {id(value) for _, value in exported}
    values = [*exported, *((n, v) for n, v in reached if id(v) not in known)]
    parts = [
        _part("Classes", _class, sorted(_of(values, _is_plain_class), key=_rank)),
        _part("Functions", _function, sorted(_of(values, inspect.isfunction))),
        _part("Dictionaries", _dictionary, sorted(_of(values, is_typeddict))),
        _part("Type aliases", _alias, sorted(_of(values, _is_alias))),
        _errors(),
    ]
    return _HEAD + "".join(f"\n{part}" for part in parts if part)


def _load(path: str) -> tuple[str, Any]:
    module, _, name = path.partition(":")
    return name, getattr(import_module(module), name)


def _of(values: list[tuple[str, Any]], which: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in values if which(value)]


def _is_plain_class(value: Any) -> bool:
    return (
        inspect.isclass(value) and not issubclass(value, BaseException) and not is_typeddict(value)
    )


def _is_alias(value: Any) -> bool:
    return not (inspect.isclass(value) or inspect.isfunction(value) or isinstance(value, str))


def _rank(entry: tuple[str, Any]) -> tuple[int, str, str]:
    name, value = entry
    return (FIRST.index(name) if name in FIRST else len(FIRST), name, value.__module__)


def _part(title: str, write: Callable[[str, Any], str], entries: list[tuple[str, Any]]) -> str:
    if not entries:
        return ""
    return f"## {title}\n" + "".join(f"\n{write(name, value)}" for name, value in entries)


# -- one name --------------------------------------------------------------------------------------


def _class(name: str, kind: type) -> str:
    title = name if getattr(llama_py, name, None) is kind else f"{kind.__module__}.{name}"
    if kind.__name__ != name:
        return f"### {title}\n\nAnother name of `{kind.__name__}`.\n"
    text = f"### {title}\n\n{_code(name, kind)}{_markdown(_doc(kind))}"
    return text + "".join(_members(name, kind))


def _members(name: str, kind: type) -> Iterator[str]:
    for member, value in _own_members(kind):
        if isinstance(value, property):
            given = _annotation(value.fget)
            yield f"\n#### {name}.{member}\n\n```py\n{member}: {given}\n```\n\n"
            yield _markdown(inspect.getdoc(value))
        else:
            function = inspect.unwrap(value.__func__ if _is_bound(value) else value)
            yield f"\n#### {name}.{member}\n\n{_code(member, function, _prefix(value))}"
            yield _markdown(inspect.getdoc(function))


def _own_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that this package defines, in the order of their definition."""
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("llama_py"):
            continue
        for name, value in vars(base).items():
            if name in seen or (name.startswith("_") and name not in _SPECIAL):
                continue
            seen.add(name)
            if isinstance(value, property) or _is_bound(value) or inspect.isfunction(value):
                yield name, value


def _is_bound(value: Any) -> bool:
    return isinstance(value, (classmethod, staticmethod))


def _prefix(value: Any) -> str:
    return "@classmethod\n" if isinstance(value, classmethod) else ""


def _function(name: str, function: Any) -> str:
    return f"### {name}\n\n{_code(name, function)}{_markdown(inspect.getdoc(function))}"


def _alias(name: str, value: Any) -> str:
    return f"### {name}\n\n```py\n{name} = {inspect.formatannotation(value)}\n```\n"


def _dictionary(name: str, kind: Any) -> str:
    if kind.__name__ != name:
        return f"### {name}\n\nAnother name of `{kind.__name__}`.\n"
    lines = [f"### {name}\n\n{_markdown(_doc(kind))}\n| key | type |\n| --- | --- |\n"]
    for key, given in kind.__annotations__.items():
        text = getattr(given, "__forward_arg__", None) or inspect.formatannotation(given)
        lines.append(f"| `{key}` | `{_escaped(text)}` |\n")
    return "".join(lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


# -- signatures ------------------------------------------------------------------------------------


def _code(name: str, function: Any, prefix: str = "") -> str:
    start = "" if inspect.isclass(function) else f"{prefix}{_how(function)}"
    signature = _signature(function)
    options = "" if "Unpack[" not in signature else "Its [options](options.md).\n\n"
    return f"```py\n{start}{name}{signature}\n```\n\n{options}"


def _how(function: Any) -> str:
    return "async def " if inspect.iscoroutinefunction(function) else "def "


def _signature(function: Any) -> str:
    """As it is written in the source, without ``self``; one parameter a line if it is long."""
    try:
        found = inspect.signature(function)
    except ValueError:  # a class without a constructor of its own
        return "()"
    given = [p for n, p in found.parameters.items() if n not in ("self", "cls")]
    found = found.replace(parameters=given)
    if inspect.isclass(function):
        found = found.replace(return_annotation=inspect.Signature.empty)
    line = _unquoted(str(found))
    if len(line) <= 70:
        return line
    rows = "".join(f"    {_unquoted(str(row))},\n" for row in _rows(given))
    _, arrow, returned = line.rpartition(" -> ")
    return f"(\n{rows}){arrow}{returned if arrow else ''}"


def _rows(parameters: list[inspect.Parameter]) -> Iterator[object]:
    """The parameters, with the star that stands before the first one that goes by name only."""
    starred = False
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield parameter


def _unquoted(text: str) -> str:
    """Annotations as they are in the source: ``signature`` shows them in quotes."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _annotation(function: Any) -> str:
    return _unquoted(str(inspect.signature(function)).rpartition(" -> ")[2]).strip("'")


# -- docstrings ------------------------------------------------------------------------------------


def _doc(kind: type) -> str:
    """The docstring of a class; ``getdoc`` would give that of ``dict`` where it has none."""
    return inspect.cleandoc(kind.__doc__ or "")


def _markdown(doc: str | None) -> str:
    """A docstring of ours as Markdown."""
    lines: list[str] = []
    section = ""
    # What help() says of options is in a page of its own here.
    for line in (doc or "").partition("\n\nOptions:\n")[0].splitlines():
        heading = re.fullmatch(rf"({'|'.join(_SECTIONS)}):", line)
        if heading:
            section = heading[1]
            lines += [f"**{section}**", ""]
        elif section and line and not line.startswith(" "):
            section = ""
            lines += ["", line]
        else:
            lines.append(_item(line) if section else line)
    text = re.sub(r"``(.+?)``", r"`\1`", "\n".join(lines), flags=re.DOTALL)
    text = re.sub(r"\n{3,}", "\n\n", text)
    return re.sub(r"(?m)::$", ":", text).rstrip() + "\n"


def _item(line: str) -> str:
    """A line of a section: ``name: text`` begins an item, what is indented further goes on."""
    if not line.startswith("    ") or line.startswith("     "):
        return re.sub(r"^ {8}", "  ", line)
    named = re.match(r"    ([*\w.]+(?:, [*\w.]+)*): (.*)", line)
    if named:
        return f"* {', '.join(f'`{name}`' for name in named[1].split(', '))}: {named[2]}"
    return line[4:]


# -- errors ----------------------------------------------------------------------------------------


def _errors() -> str:
    tree = (errors.__doc__ or "").partition("::\n")[2].strip("\n")
    own = [getattr(errors, name) for name in errors.__all__]
    kinds = sorted((kind for kind in own if inspect.isclass(kind)), key=lambda kind: kind.__name__)
    described = "".join(f"\n### {kind.__name__}\n\n{_markdown(_doc(kind))}" for kind in kinds)
    return f"## Errors\n\n```text\n{inspect.cleandoc(tree)}\n```\n{described}"


if __name__ == "__main__":
    print(reference(), end="")
