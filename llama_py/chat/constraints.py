"""Grammars for replies: ``LlamaGrammar``, JSON schemas, and which engine enforces them.

There are two engines: llama.cpp's grammar sampler (GBNF text, always available) and llguidance (the
extra ``structured``), which supports more of JSON schema and costs microseconds per token.
``"auto"`` takes llguidance if it is installed. A schema that the chosen engine cannot express is a
``GrammarError`` that names the keyword and its place; nothing in a schema is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llama_py.chat.calls.call_triggers import openings_of
from llama_py.chat.calls.plain_calls import with_vocab
from llama_py.chat.grammars.converter import gbnf_of_schema
from llama_py.chat.grammars.guidance import available, guide_for, unsatisfiable
from llama_py.chat.grammars.layout import WatchedAnswer
from llama_py.chat.messages import ChatRequest
from llama_py.chat.reasoning import NO_REASONING, Reasoning, reasoning_of
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.schemas.bounds import check_bounds
from llama_py.chat.vocab import VocabLike
from llama_py.core.chat import ReplyParser
from llama_py.core.grammar.gbnf_check import check_gbnf
from llama_py.errors import GrammarError, ParameterError, TemplateError, shown
from llama_py.params import GrammarSpec, TokenConstraint
from llama_py.regular_files import read_short_text

if TYPE_CHECKING:
    from llama_py.chat.templates.template import ChatTemplate

__all__ = [
    "Backend",
    "CompiledGrammar",
    "LlamaGrammar",
    "compile_schema",
    "constrain_plain",
    "render_constrained",
]

Backend = Literal["auto", "llguidance", "gbnf"]
BACKENDS = ("auto", "llguidance", "gbnf")


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar in the form that ``SamplingParams`` takes. ``compile_schema`` sets one of the two.

    Attributes:
        grammar: for llama.cpp's grammar sampler.
        constraint: a function that makes the constraint of one generated sequence (llguidance).
    """

    grammar: GrammarSpec | None = None
    constraint: Callable[[], TokenConstraint] | None = None


def _use_guidance(backend: str) -> bool:
    if backend not in BACKENDS:
        raise ParameterError(f"backend is {backend!r}; expected one of {', '.join(BACKENDS)}")
    return backend == "llguidance" or (backend == "auto" and available())


def _schema_of(schema: Any) -> Any:
    """A schema given as JSON text, or as Python values."""
    if not isinstance(schema, (str, bytes)):
        return schema
    try:
        return json.loads(schema)
    except ValueError as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from None
    except RecursionError:
        raise GrammarError(
            'the JSON schema is nested too deep to be read; use "$defs" and "$ref"'
        ) from None


def compile_schema(
    schema: Any,
    vocab: VocabLike | None = None,
    backend: Backend = "auto",
    reasoning: Reasoning = NO_REASONING,
) -> CompiledGrammar:
    """A JSON schema as something that the sampler can enforce.

    Args:
        schema: the schema, or its JSON text.
        vocab: the model's vocabulary; without one llguidance cannot be used.
        backend: ``"llguidance"``, ``"gbnf"``, or ``"auto"``: llguidance if it is installed, and
            llama.cpp's for a schema that only llama.cpp can express.
        reasoning: what may come before the text that the schema is for, and is free.

    Raises:
        GrammarError: the schema uses a keyword that the engine does not implement.
    """
    schema = _schema_of(schema)
    check_bounds(schema)
    if vocab is None or not _use_guidance(backend):
        if backend == "llguidance":
            raise GrammarError("the llguidance backend needs the model's vocabulary")
        return CompiledGrammar(grammar=_spec_of(schema, reasoning))
    try:
        make = guide_for(vocab).compile(schema, reasoning=reasoning)
        return CompiledGrammar(constraint=make)
    except GrammarError as error:
        if backend == "auto" and not unsatisfiable(error):
            try:
                spec = _spec_of(schema, reasoning)
                return CompiledGrammar(grammar=spec)
            except GrammarError:
                raise error from None
        raise


def _spec_of(schema: Any, reasoning: Reasoning) -> GrammarSpec:
    spec = reasoning.framed(GrammarSpec(gbnf_of_schema(schema)))
    return replace(spec, watch=WatchedAnswer(reasoning))


class LlamaGrammar:
    """A grammar for ``grammar=``: rules in GBNF, or made from a JSON schema.

    Args:
        grammar: GBNF rules.
        root: the start symbol.

    Attributes:
        schema: the JSON schema that it was made from, or None.
    """

    def __init__(self, grammar: str, root: str = "root", *, schema: Any = None) -> None:
        self._text = grammar
        self._refusal: GrammarError | None = None
        self.root = root
        self.schema = schema

    @property
    def grammar(self) -> str:
        """The GBNF text.

        Raises:
            GrammarError: llama.cpp cannot express the schema, which only llguidance can enforce.
        """
        if self._refusal is not None:
            raise self._refusal
        return self._text

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar from GBNF text. ``verbose`` has no effect.

        Raises:
            GrammarError: the text does not parse, can never end, or is too large; with the line
                and the rule.
        """
        if "::=" not in grammar:
            raise GrammarError('the grammar has no rule; GBNF looks like: root ::= "yes" | "no"')
        check_gbnf(grammar)
        return cls(grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """A grammar from a file of GBNF text.

        Raises:
            GrammarError: the file cannot be read, or holds no grammar.
        """
        try:
            text = read_short_text(file)
        except (OSError, UnicodeDecodeError) as error:
            raise GrammarError(f"the grammar file {str(file)!r} cannot be read: {error}") from error
        return cls.from_string(text, verbose)

    @classmethod
    def from_json_schema(cls, json_schema: Any, verbose: bool = True) -> LlamaGrammar:
        """A grammar from a JSON schema (JSON text or Python values).

        Where llguidance is installed, it enforces the schema when the grammar is used. A schema
        that llama.cpp cannot express has no text in ``grammar`` then.

        Raises:
            GrammarError: the schema is too large or contradictory, or llama.cpp cannot express it
                and llguidance is not installed.
        """
        schema = _schema_of(json_schema)
        check_bounds(schema)
        try:
            return cls(gbnf_of_schema(schema), schema=schema)
        except GrammarError as error:
            if not available():
                raise
            grammar = cls("", schema=schema)
            grammar._refusal = error
            return grammar

    def __repr__(self) -> str:
        if self.schema is not None:
            return f"LlamaGrammar.from_json_schema({shown(self.schema)})"
        return f"LlamaGrammar({shown(self._text)}, {self.root!r})"

    @property
    def spec(self) -> GrammarSpec:
        """The grammar in the form that ``SamplingParams.grammar`` takes."""
        return GrammarSpec(self.grammar, self.root)

    def compile(
        self,
        vocab: VocabLike | None,
        backend: Backend = "auto",
        reasoning: Reasoning = NO_REASONING,
    ) -> CompiledGrammar:
        """Compile it for the fastest engine: llguidance for a schema, if it is installed.

        Args:
            reasoning: what may come before the text that the grammar is for, and is free.
        """
        if self.schema is None:
            return CompiledGrammar(grammar=reasoning.framed(self.spec))
        if vocab is None:
            spec = replace(reasoning.framed(self.spec), watch=WatchedAnswer(reasoning))
            return CompiledGrammar(grammar=spec)
        return compile_schema(self.schema, vocab, backend, reasoning)


# ---- replies of a chat ---------------------------------------------------------------------------


def render_constrained(
    template: ChatTemplate,
    request: ChatRequest,
    vocab: VocabLike | None,
    backend: Backend = "auto",
) -> RenderedChat:
    """Render a request, and choose the engine that enforces its schema.

    Reasoning is not constrained, and the reply may be a tool call instead of an answer. In the
    rendered chat, ``grammar`` is enforced by llama.cpp's sampler (the grammar of the tools, and of
    the schema unless llguidance enforces that), and ``constraint`` by llguidance.

    Raises:
        GrammarError: nobody can express the schema.
        TemplateError: the template refuses the messages.
    """
    if request.reasoning_format == "none":
        read = replace(request, reasoning_format="auto")
        found = render_constrained(template, read, vocab, backend)
        if _is_behind_reasoning(found):
            # Its grammar has to know where the reasoning ends, so that is read, and put back.
            return replace(found, inline_reasoning=True)
    schema = request.schema
    if schema is None or request.tool_choice.mode not in ("auto", "none"):
        rendered = _watched(template.render(request))
        if rendered.plain_calls is None or vocab is None:
            return rendered
        return replace(rendered, plain_calls=with_vocab(rendered.plain_calls, vocab))
    refusal: GrammarError | None = None
    guided = vocab is not None and _use_guidance(backend)
    # llama.cpp's grammars of a template are for replies that are more than reasoning and an answer.
    if guided or not request.uses_tools:
        rendered = template.render(request, schema_grammar=False)
        if _is_simple(rendered):
            try:
                return _enforced(rendered, vocab if guided else None)
            except GrammarError as error:
                if backend == "llguidance" or unsatisfiable(error) or not guided:
                    raise
                refusal = error
    try:
        return _watched(template.render(request))
    except (GrammarError, TemplateError):
        if refusal is None:
            raise
        raise refusal from None  # llguidance's reason: what is installed decides


def _is_behind_reasoning(rendered: RenderedChat) -> bool:
    """Whether a reply is constrained, and the prompt opens reasoning before it, or closes it."""
    spec, marks = rendered.grammar, (rendered.thinking_start, *rendered.thinking_ends)
    constrained = rendered.constraint is not None or (spec is not None and not spec.lazy)
    opening = rendered.generation_prompt
    return constrained and any(mark.strip() in opening for mark in marks if mark.strip())


def _watched(rendered: RenderedChat) -> RenderedChat:
    """The chat, whose grammar knows where the reasoning is, and that the answer is JSON."""
    spec, reasoning = rendered.grammar, reasoning_of(rendered)
    is_json = rendered.schema is not None and not rendered.calls_tools
    if spec is None or not (is_json or (spec.lazy and reasoning.possible)):
        return rendered
    watch = WatchedAnswer(reasoning, is_json)
    return replace(rendered, grammar=replace(spec, watch=watch))


def _enforced(rendered: RenderedChat, vocab: VocabLike | None) -> RenderedChat:
    """The chat with its schema enforced: by llguidance, or without a vocabulary by a grammar."""
    reasoning = reasoning_of(rendered)
    if vocab is None:
        spec = _spec_of(rendered.schema, reasoning)
        return replace(rendered, grammar=spec)
    marks = rendered.call_marks if rendered.calls_tools else ()
    arena = (rendered.parser or {}).get("arena", "")
    calls = openings_of(arena, marks, rendered.generation_prompt) if marks else ()
    make = guide_for(vocab).compile(rendered.schema, reasoning=reasoning, calls=calls)
    return replace(rendered, constraint=make)


def constrain_plain(rendered: RenderedChat, vocab: VocabLike | None) -> RenderedChat:
    """A rendered chat of a format without reasoning and tools, with its schema enforced.

    Raises:
        GrammarError: nobody can express the schema.
    """
    if rendered.schema is None:
        return rendered
    compiled = compile_schema(rendered.schema, vocab)
    return replace(rendered, grammar=compiled.grammar, constraint=compiled.constraint)


def _is_simple(rendered: RenderedChat) -> bool:
    """Whether a reply consists of optional reasoning between marks and then only the answer."""
    if rendered.calls_tools and not rendered.call_marks:
        return False
    if rendered.plain or rendered.parser is None:
        return True
    probe = '{"a": 1}'
    reasoning = reasoning_of(rendered)
    if reasoning.direct != reasoning.wrapping:
        return False  # a reply is several messages, whose beginnings are marks
    text = f"x{reasoning.closing}\n\n{probe}" if reasoning.inside else probe
    if reasoning.wrapping.before:
        opened = f"{reasoning.wrapping.before}{probe}"
        text = f"x{reasoning.closing}{opened}" if reasoning.inside else opened
        text += "".join(mark.text for mark in reasoning.wrapping.after if mark.needed)
    parser = ReplyParser(rendered.parser)
    try:
        content = str(parser.parse(text)["content"]).strip()
    finally:
        parser.close()
    return content in (probe, text)  # the latter where the reasoning is left in the content
