"""Tools of the Responses API: what the model may call, and what its calls stand for."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llama_py.chat.conversation import Tool, ToolChoice
from llama_py.dialects.fields import Fields, wrong_type, wrong_value
from llama_py.errors import shown

__all__ = ["INPUT", "DeclaredTool", "Tools", "custom_arguments", "read_choice", "skipped"]

_log = logging.getLogger("llama_py.server")

#: The one parameter of a custom tool, which takes text in place of JSON.
INPUT = "input"
_ANYTHING: Mapping[str, Any] = {"type": "object", "properties": {}}
_FREEFORM: Mapping[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
_CALLABLE = ("function", "custom")
_MODES = ("auto", "none", "required")
#: Kinds that were mentioned in the log. Clients choose their names, so there is a bound.
_told: set[str] = set()
_MOST_TOLD = 100


def skipped(what: str) -> None:
    """Say once that something in a request is not supported and was left out."""
    if what not in _told and len(_told) < _MOST_TOLD:
        _told.add(what)
        _log.warning("%s: not supported, and left out of the prompt", what)


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool as its client knows it.

    Attributes:
        namespace: the group that it was declared in, or empty.
        custom: it takes text, and not the JSON of an object.
    """

    name: str
    namespace: str = ""
    custom: bool = False


class Tools:
    """The tools of a request, each under a name of its own.

    Models know no namespaces: ``search`` in ``crm`` is offered as ``crm__search``.

    Attributes:
        offered: what the model is told.
        declared: how many there were, with those that are not supported.
    """

    def __init__(self, declared: list[Any], where: str = "tools") -> None:
        self.declared = len(declared)
        self.offered: list[Tool] = []
        self._targets: dict[str, DeclaredTool] = {}
        self._names: dict[tuple[str, str], str] = {}
        #: Outside of namespaces first: those keep their names.
        nested: list[tuple[Fields, str, str]] = []
        for index, value in enumerate(declared):
            tool = Fields(value, f"{where}[{index}]")
            if tool.get("type") == "namespace":
                namespace = tool.needed_text("name")
                for place, inner in enumerate(tool.list("tools")):
                    fields = Fields(inner, f"{tool.place('tools')}[{place}]")
                    nested.append((fields, namespace, tool.text("description") or ""))
            else:
                self._add(tool)
        for fields, namespace, about in nested:
            self._add(fields, namespace, about)

    def _add(self, tool: Fields, namespace: str = "", about: str = "") -> None:
        kind = tool.get("type")
        if kind not in _CALLABLE:
            skipped(f"a tool of the type {shown(kind, 40)}")
            return
        name = tool.needed_text("name")
        if not name:
            raise wrong_value(tool.place("name"), "is empty; a tool needs a name")
        if (namespace, name) in self._names:
            raise wrong_value(
                tool.place("name"), f"is {shown(name)}, as that of another tool; use each once"
            )
        flat = joined(namespace, name)
        while flat in self._targets:
            flat += "_"
        self._names[namespace, name] = flat
        self._targets[flat] = DeclaredTool(name, namespace, kind == "custom")
        description = tool.text("description") or about
        if kind == "custom":
            form = tool.fields("format")
            if form is not None and form.get("type") == "grammar":  # it is told, not enforced
                syntax, definition = form.text("syntax") or "", form.text("definition") or ""
                told = f"The input follows this {syntax} grammar:\n{definition}"
                description = f"{description}\n\n{told}".lstrip()
            self.offered.append(Tool(flat, description, _FREEFORM))
        else:
            self.offered.append(Tool(flat, description, _parameters(tool)))

    def target(self, flat: str) -> DeclaredTool:
        """The tool that the model means by a name."""
        return self._targets.get(flat) or DeclaredTool(flat)

    def name_of(self, name: str, namespace: str = "") -> str:
        """The name under which the model knows a tool, also if it is not offered any more."""
        return self._names.get((namespace, name)) or joined(namespace, name)

    def find(self, name: str, namespace: str = "") -> str | None:
        """The name of an offered tool, also of one in some namespace if none is given."""
        found = self._names.get((namespace, name))
        if found is None and not namespace:
            others = [flat for (_, own), flat in self._names.items() if name in (own, flat)]
            found = others[0] if len(others) == 1 else None
        return found


def joined(namespace: str, name: str) -> str:
    """A namespace and a name as one name. Some namespaces end with the separator already."""
    if not namespace or namespace.endswith("__"):
        return namespace + name
    return f"{namespace}__{name}"


def _parameters(tool: Fields) -> Mapping[str, Any]:
    parameters = tool.json("parameters")
    if parameters is None:
        return _ANYTHING
    if not isinstance(parameters, Mapping):
        raise wrong_type(tool.place("parameters"), "a JSON schema (an object)", parameters)
    kind = parameters.get("type")
    if kind is not None and kind != "object":
        where = f"{tool.place('parameters')}.type"
        raise wrong_value(where, f'is {shown(kind)}; arguments are of the type "object"')
    return parameters


def custom_arguments(text: str) -> str:
    """The arguments of a call of a custom tool, for the model."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


# ---- tool_choice -----------------------------------------------------------------------------


def read_choice(choice: Any, tools: Tools) -> ToolChoice:
    """Which tool the model has to call.

    A choice of a kind of tool that is not supported is left to the model.

    Raises:
        RequestError: it is no choice, or names no tool.
    """
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str):
        return _mode(choice, tools, "tool_choice")
    fields = Fields(choice, "tool_choice")
    kind = fields.get("type")
    if kind in _CALLABLE:
        return ToolChoice("named", _named(fields, tools))
    if kind == "allowed_tools":
        place = fields.place("tools")
        entries = [Fields(each, f"{place}[{i}]") for i, each in enumerate(fields.list("tools"))]
        names = [_named(entry, tools) for entry in entries if entry.get("type") in _CALLABLE]
        mode = _mode(fields.text("mode") or "auto", tools, fields.place("mode"))
        if not names:
            return ToolChoice("none")
        # All tools stay in the prompt, so that what is cached of it fits.
        return ToolChoice(mode.mode, allowed=tuple(dict.fromkeys(names)))
    skipped(f"a tool_choice of the type {shown(kind, 40)}")
    return ToolChoice()


def _mode(mode: str, tools: Tools, where: str) -> ToolChoice:
    if mode not in _MODES:
        raise wrong_value(where, f"is {shown(mode)}; expected one of {', '.join(_MODES)}")
    if mode == "required" and not tools.offered:
        if tools.declared:  # all are of a kind that is left out
            return ToolChoice()
        raise wrong_value(where, 'is "required", but there are no tools')
    return ToolChoice(mode)  # type: ignore[arg-type]


def _named(fields: Fields, tools: Tools) -> str:
    name = fields.needed_text("name")
    found = tools.find(name, fields.text("namespace") or "")
    if found is None:
        known = ", ".join(tool.name for tool in tools.offered) or "none are given"
        raise wrong_value(
            fields.place("name"), f"is {shown(name)}, which is no tool; the tools are: {known}"
        )
    return found
