"""``Jinja2ChatFormatter``: a chat template rendered by Python's Jinja2, as Transformers does it.

The library itself renders with llama.cpp's engine. This one is for callers with a Jinja environment
of their own, for code written for llama-cpp-python, and for comparing the two. Templates come with
models, and so from untrusted sources: they run in a sandbox that cannot reach attributes of Python
objects or change its arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, Protocol

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llama_py.errors import TemplateError
from llama_py.quick_dataclass import dataclass

__all__ = [
    "ChatFormatter",
    "ChatFormatterResponse",
    "Jinja2ChatFormatter",
    "explain_refusal",
    "read_literals",
]


@dataclass
class ChatFormatterResponse:
    """The result of a formatter: the prompt of a conversation, and when its reply ends.

    Attributes:
        prompt: the text to continue.
        stop: a text that ends the reply, or several.
        stopping_criteria: called with (tokens so far, logits); true ends the reply.
        added_special: the prompt contains BOS already.
    """

    prompt: str
    stop: str | list[str] | None = None
    stopping_criteria: Any = None
    added_special: bool = False


class ChatFormatter(Protocol):
    """Turns a conversation into a prompt."""

    def __call__(
        self, *, messages: Sequence[Mapping[str, Any]], **kwargs: Any
    ) -> ChatFormatterResponse: ...


class _GenerationTag(Extension):
    """``{% generation %}``, with which Transformers marks what to train on: just its contents."""

    tags = {"generation"}  # noqa: RUF012  # Jinja declares it so

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not Jinja's own filter: that one escapes for HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    """The environment of all templates. It refers to itself, so one for each would pile up."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    """Shared, because it is in a reference cycle as well, and is the same each time."""
    compiled = _environment().from_string(template)
    # Jinja's chain of mappings is put together anew whenever a template is rendered.
    compiled.globals = dict(compiled.globals)
    return compiled


def _told(error: Exception) -> str:
    """The message of an error of Jinja; for other errors, their type as well."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    if isinstance(error, jinja2.TemplateError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def explain_refusal(template: str, refusal: TemplateError) -> TemplateError:
    """An error with the line and the reason from Jinja2, as llama.cpp gives neither."""
    try:
        Jinja2ChatFormatter(template, "", "")
    except TemplateError as error:
        return error
    return TemplateError(f"llama.cpp cannot read this chat template, but Jinja2 can ({refusal})")


class Jinja2ChatFormatter:
    """A ``ChatFormatter`` from a Jinja template.

    Args:
        template: the template's text.
        eos_token, bos_token: texts of those tokens.
        add_generation_prompt: end with the opening of an assistant message.
        stop_token_ids: token ids that end the reply.

    Raises:
        TemplateError: the template does not parse; when called, it fails on these messages.
    """

    def __init__(
        self,
        template: str,
        eos_token: str,
        bos_token: str,
        add_generation_prompt: bool = True,
        stop_token_ids: Sequence[int] | None = None,
    ) -> None:
        self.template = template
        self.eos_token = eos_token
        self.bos_token = bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids = None if stop_token_ids is None else frozenset(stop_token_ids)
        try:
            self._compiled = _compiled(template)
        except Exception as error:  # a template may make Jinja raise anything (SyntaxError, ...)
            raise TemplateError(f"the chat template does not parse: {_told(error)}") from error

    def __call__(
        self, *, messages: Sequence[Mapping[str, Any]], **kwargs: Any
    ) -> ChatFormatterResponse:
        values = {
            "messages": messages,
            "eos_token": self.eos_token,
            "bos_token": self.bos_token,
            "add_generation_prompt": self.add_generation_prompt,
            "tools": None,
            **kwargs,
        }
        try:
            prompt = self._compiled.render(**values)
        except Exception as error:  # a template may divide by zero, index, recurse, ...
            raise TemplateError(
                f"the chat template refuses these messages: {_told(error)}"
            ) from error
        stops = self.stop_token_ids
        criterion = None if stops is None else lambda tokens, logits: int(tokens[-1]) in stops
        return ChatFormatterResponse(prompt, [self.eos_token], criterion, True)


# ---- what a template writes and looks for -----------------------------------------------------

_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")


def read_literals(sources: Iterable[str]) -> tuple[str, frozenset[str]]:
    """The literals of templates.

    Returns:
        All of them in one text, one after the other; and those that a template compares texts
        with, looks for in them, splits them at, or has given a name to.
    """
    written: list[str] = []
    looked_for: set[str] = set()
    for source in sources:
        try:
            tree = _environment().parse(source)
        except (jinja2.TemplateError, RecursionError):  # llama.cpp reads some that Jinja does not
            written.append(source)
            looked_for.update(one or other for one, other in _QUOTED.findall(source))
            continue
        written += (data.data for data in tree.find_all(nodes.TemplateData))
        written += _strings(tree)
        # Where a template may contain a text that it looks for in messages.
        looking: list[Node] = [assigned.node for assigned in tree.find_all(nodes.Assign)]
        for compared in tree.find_all(nodes.Compare):
            looking += [compared.expr, *(operand.expr for operand in compared.ops)]
        for call in tree.find_all(nodes.Call):
            looking += call.args
        for filtered in tree.find_all(nodes.Filter):
            looking += filtered.args
        looked_for.update(text for place in looking for text in _strings(place))
    return "\n".join(written), frozenset(looked_for)


def _strings(tree: Node) -> Iterator[str]:
    constants = [tree] if isinstance(tree, nodes.Const) else tree.find_all(nodes.Const)
    return (constant.value for constant in constants if isinstance(constant.value, str))
