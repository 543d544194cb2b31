"""``ChatTemplate``: renders a conversation as a ``RenderedChat``: prompt, grammar, reply format.

llama.cpp renders the template, and knows how each model family writes reasoning and tool calls.
This module asks it once per request, and collects what the engine, the sampler, the cache and the
parser of the reply need. Combinations that llama.cpp does not support (a schema together with
tools, one named tool) are rendered more than once and put together here.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from llama_py.chat.answer_marks import says_one_answer
from llama_py.chat.calls.grammar import CallFormat, answer_of, grammar_of_calls, parser_of_calls
from llama_py.chat.calls.lazy_grammar import (
    begins_with_json,
    patterns_of_json,
    patterns_of_sections,
    waits_for_sections,
)
from llama_py.chat.calls.plain_calls import plain_calls_of
from llama_py.chat.conversation import Message, Text, Tool, ToolChoice
from llama_py.chat.grammars.converter import prepare_schema
from llama_py.chat.grammars.gbnf import widened
from llama_py.chat.grammars.order import in_order
from llama_py.chat.messages import ChatRequest
from llama_py.chat.reasoning import answers_after_end
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.schemas.json_forms import levels_of
from llama_py.chat.schemas.tool_schemas import call_schema, has_alternatives
from llama_py.chat.templates.boundaries import find_starts, learn_delimiters
from llama_py.chat.templates.engine import TemplateEngine
from llama_py.chat.templates.general_tools import calling_template, written_out
from llama_py.chat.templates.inputs import inputs_of, tool_values
from llama_py.chat.templates.normal_form import normal_form
from llama_py.chat.templates.probes import ProbedSlots
from llama_py.errors import TemplateError
from llama_py.params import GrammarSpec

__all__ = ["ChatTemplate"]

_log = logging.getLogger("llama_py")

_HELLO = Message("user", (Text("Hello."),))
#: What a template for translations has to be told.
_LANGUAGES = ("source_lang_code", "target_lang_code")
#: Ways in which a template opens replies, for which is remembered how they may call tools.
_MOST_CALLERS = 8


class _ModelLike(Protocol):
    """The part of ``core.model.Model`` that this module uses."""

    vocab: Any

    def chat_template(self, name: str | None = None) -> str | None: ...

    def in_use(self) -> AbstractContextManager[Any]: ...


class ChatTemplate:
    """A chat template that is ready to render. Safe to use from several threads.

    Make one with ``from_model`` or ``from_text``.
    """

    def __init__(self, engine: TemplateEngine, *, tool_form: str = "auto") -> None:
        self._engine = engine
        self._wanted_form = tool_form
        self._callers: OrderedDict[tuple[str, str, str], ChatTemplate] = OrderedDict()
        self._lock = threading.Lock()
        self._learned: tuple[tuple[str, str], ...] | None = None
        # Of the engine alone: a method of this object would hold it in a circle.
        self._slots = ProbedSlots(engine.prompt)

    @classmethod
    def from_model(
        cls, model: _ModelLike, text: str | None = None, *, tool_form: str = "auto"
    ) -> ChatTemplate:
        """The model's own template, or ``text`` with the model's BOS and EOS texts.

        For a model without a template it is ChatML, and ``explicit`` is False.

        Args:
            tool_form: how tools are declared and called: ``"template"`` is the template's own way,
                ``"hermes"`` that of ``general_tools``, and ``"auto"`` the latter where the template
                has none.

        Raises:
            TemplateError: the template does not parse.
        """
        vocab = model.vocab
        bos, eos = (
            vocab.piece(token).decode("utf-8", "replace") if token >= 0 else ""
            for token in (vocab.bos, vocab.eos)
        )
        with model.in_use() as pointer:  # another thread may close it meanwhile
            return cls(TemplateEngine(pointer, text, bos=bos, eos=eos), tool_form=tool_form)

    @classmethod
    def from_text(
        cls, text: str, *, bos: str = "", eos: str = "", tool_form: str = "auto"
    ) -> ChatTemplate:
        """A Jinja template. ``tool_form`` is that of ``from_model``.

        Raises:
            TemplateError: it does not parse, or is empty.
        """
        return cls(TemplateEngine(text=text, bos=bos, eos=eos), tool_form=tool_form)

    def close(self) -> None:
        """Free the compiled template."""
        self._engine.close()
        with self._lock:
            callers = [*self._callers.values()]
            self._callers.clear()
        for caller in callers:
            caller.close()

    @property
    def _info(self) -> Mapping[str, Any]:
        return self._engine.info

    @property
    def source(self) -> str:
        """The template's text."""
        return str(self._info["source"])

    @property
    def sources(self) -> tuple[str, ...]:
        """The template's text, and the text of the separate template for tools if there is one."""
        texts = (self._info["source"], self._info["source_tool_use"])
        return tuple(str(text) for text in texts if text)

    @property
    def explicit(self) -> bool:
        """False if the model has no template, so that ChatML is used."""
        return bool(self._info["explicit"])

    @property
    def caps(self) -> Mapping[str, bool]:
        """The abilities of the template (``supports_tools``, ``supports_system_role``, ...)."""
        caps: Mapping[str, bool] = self._info["caps"]
        return caps

    @property
    def supports_thinking(self) -> bool:
        """True if the model's family reasons in a marked block."""
        return bool(self._info["thinking"])

    @cached_property
    def tool_form(self) -> str | None:
        """How tools are declared and called: ``"template"``, ``"hermes"``, or None: not at all."""
        if self._wanted_form == "hermes":
            return "hermes"
        # Whether llama.cpp knows how this template has tools called.
        tool = Tool("probe", "A probe.", {"type": "object", "properties": {}})
        asked = ChatRequest((_HELLO,), tools=(tool,), now=0)
        try:
            calls = self._engine.apply(inputs_of(asked))["has_tool_calls"]
        except TemplateError:
            calls = True  # it has an opinion on tools, and says so
        if calls:
            return "template"
        if self._wanted_form == "template":
            return None
        _log.info(
            "this chat template has no form for tools: where there are some, they are declared and "
            "called in the form %r (tool_form)",
            "hermes",
        )
        return "hermes"

    # ---- rendering ---------------------------------------------------------------------------

    def render(self, request: ChatRequest, *, schema_grammar: bool = True) -> RenderedChat:
        """Render a conversation.

        With tools and a schema, the reply is either a call or an answer that fits the schema. If a
        call is required, the schema has no effect.

        Args:
            schema_grammar: put a requested JSON schema into the grammar. If False, another engine
                enforces it, and finds it in ``schema``.

        Raises:
            TemplateError: the template refuses the messages, or cannot do what is asked for.
            GrammarError: llama.cpp's grammars cannot express the schema.
        """
        self._look_for_languages(request)
        if request.about_tools and self.tool_form == "hermes":
            return self._render_written_out(request, schema_grammar)
        going_on = bool(request.continue_final_message)
        messages = normal_form(request.messages, self._slots, goes_on=going_on)
        schema, inputs = request.schema, inputs_of(request, messages)
        if request.uses_tools:
            params = self._apply_tools(request, inputs, schema_grammar)
        elif schema is None:
            params = self._apply(inputs)
        elif schema_grammar:
            params = self._apply(inputs, json_schema=prepare_schema(schema))
            params = {**params, "grammar": answers_after_end(params["grammar"])}
        else:
            params = self._apply(inputs)
            if self._shows_schema:
                shown = self._apply(inputs, json_schema=schema)["prompt"]
                params = {**params, "prompt": shown}
        return self._rendered(request, params, schema)

    def _apply(self, inputs: dict[str, Any], **changes: Any) -> dict[str, Any]:
        inputs = {**inputs, **changes}
        params = self._engine.apply(inputs)
        if params["grammar"] and not inputs.get("tools"):
            schema = inputs["json_schema"]
            grammar = widened(in_order(params["grammar"], [schema]), levels_of(schema))
            params = {**params, "grammar": grammar}
        return params

    def _may_repeat(self, wanted: bool | None) -> bool:
        """Whether a reply may have several calls."""
        return bool(self.caps["supports_parallel_tool_calls"] if wanted is None else wanted)

    def _render_written_out(self, request: ChatRequest, schema_grammar: bool) -> RenderedChat:
        """A conversation with tools in the form of ``general_tools``."""
        messages = written_out(request.messages, request.shown_tools, self._slots)
        plain = replace(request, messages=messages, tools=(), tool_choice=ToolChoice())
        if not request.uses_tools:
            return self.render(plain, schema_grammar=schema_grammar)
        own = self._apply(inputs_of(plain))
        caller = self._caller(own, plain)
        going_on = messages[-1:] if request.continue_final_message else ()
        asked = replace(request, messages=(_HELLO, *going_on), template_kwargs={})
        params = caller._apply_tools(asked, inputs_of(asked), schema_grammar)
        params = {
            **params,
            "prompt": own["prompt"],
            "message_delimiters": own["message_delimiters"],
            "additional_stops": [*own["additional_stops"], *params["additional_stops"]],
            "preserved_tokens": [
                *dict.fromkeys([*own["preserved_tokens"], *params["preserved_tokens"]])
            ],
        }
        several = caller._may_repeat(request.parallel_tool_calls)
        rendered = self._rendered(request, params, request.schema, several=several)
        return replace(rendered, generation_prompt=own["generation_prompt"])

    def _caller(self, own: Mapping[str, Any], plain: ChatRequest) -> ChatTemplate:
        """The template that says what a reply with calls may be, after a prompt of this one."""
        opening = own["generation_prompt"]
        if plain.continue_final_message:
            begun = replace(plain, messages=(_HELLO,), continue_final_message=False)
            opening = self._apply(inputs_of(begun))["generation_prompt"]
        start, ends = own["thinking_start_tag"], own["thinking_end_tags"]
        key = (opening or "<|assistant|>\n", start, ends[0] if start and ends else "")
        with self._lock:
            if key not in self._callers:
                marks = (start, key[2]) if key[2] else None
                self._callers[key] = ChatTemplate.from_text(calling_template(key[0], marks))
                if len(self._callers) > _MOST_CALLERS:
                    self._callers.popitem(last=False)
            self._callers.move_to_end(key)
            return self._callers[key]

    def _apply_tools(
        self, request: ChatRequest, inputs: dict[str, Any], schema_grammar: bool
    ) -> dict[str, Any]:
        prompt, inputs = self._with_callable_tools(request, inputs)
        params = self._apply(inputs)
        if not params["has_tool_calls"]:
            raise TemplateError(
                "this chat template has no form for tool calls; leave out tool_form, which allows "
                'no other than its own, use a template that has one, or pass tool_choice="none"'
            )
        if prompt is not None:
            params = {**params, "prompt": prompt}
        required = request.tool_choice.mode != "auto"
        if required:
            params = {**params, "grammar_lazy": False}
        form = self._call_format(params, inputs)
        if not required and not params["grammar"]:
            return self._apply_unmarked(request, inputs, params, schema_grammar)
        parser = {**params["parser"], "arena": parser_of_calls(form)}
        params = {**params, "grammar": grammar_of_calls(form), "parser": parser}
        if not required and waits_for_sections(params):
            patterns = patterns_of_sections([tool.name for tool in request.callable_tools])
            params = {**params, "trigger_patterns": patterns}
        if not required and schema_grammar and request.schema is not None:
            params = {**params, **self._call_or_answer(request.schema, inputs)}
        return params

    def _call_or_answer(self, schema: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        """The grammar of a reply that calls a tool, or fits a schema."""
        schema = prepare_schema(schema)
        form = self._call_format(self._apply(inputs, tool_choice="required"), inputs)
        answer = self._apply(inputs, tools=None)
        free = answer["thinking_end_tags"] and says_one_answer(answer["parser"]["arena"])
        if not free:  # then there is more to a reply than marks around its reasoning and answer
            answer = self._apply(inputs, tools=None, json_schema=schema)
        return {"grammar": grammar_of_calls(answer_of(form, answer, schema)), "grammar_lazy": False}

    def _apply_unmarked(
        self,
        request: ChatRequest,
        inputs: dict[str, Any],
        params: dict[str, Any],
        schema_grammar: bool,
    ) -> dict[str, Any]:
        """What llama.cpp says of a reply whose calls have no mark, put right.

        Its parser takes each bracket for a call, and loses the text behind it if it is none.
        """
        asked = self._apply(inputs, tool_choice="required")
        if not begins_with_json(asked["parser"]["arena"]):
            return params
        answer = self._apply(inputs, tools=None)
        params = {**params, **{key: answer[key] for key in ("parser", "plain")}, "unmarked": True}
        if request.schema is not None:
            found = self._call_or_answer(request.schema, inputs) if schema_grammar else {}
            return {**params, **found}
        form = self._call_format({**asked, "grammar_lazy": False}, inputs)
        grammar = grammar_of_calls(form._replace(opening=asked["generation_prompt"]))
        patterns = patterns_of_json([tool.name for tool in request.callable_tools])
        lazy = {"grammar": grammar, "grammar_lazy": True, "trigger_patterns": patterns}
        return {**params, **lazy}

    def _call_format(self, params: Mapping[str, Any], inputs: Mapping[str, Any]) -> CallFormat:
        return CallFormat(
            arena=params["parser"]["arena"],
            notation=params["format"],
            tools=json.dumps(inputs["tools"]),
            lazy=params["grammar_lazy"],
            single=not self._may_repeat(inputs["parallel_tool_calls"]),
        )

    def _with_callable_tools(
        self, request: ChatRequest, inputs: dict[str, Any]
    ) -> tuple[str | None, dict[str, Any]]:
        """The inputs that a grammar of calls is made of, and the prompt if theirs is another.

        The prompt lists all tools, so that the cache fits, with the parameters as they were given.
        """
        enforced = []
        for tool in request.callable_tools:
            schema = call_schema(tool.name, tool.schema_of_calls)
            if has_alternatives(schema) and not self._takes_alternatives:
                schema = call_schema(tool.name, tool.schema_of_calls, alternatives=False)
            enforced.append(replace(tool, parameters=schema))
        tools = tool_values(enforced)
        if tools == inputs["tools"]:
            return None, inputs
        try:
            # No grammar is made then, for which the schemas might not do. The prompt is the same.
            prompt = str(self._apply({**inputs, "tool_choice": "none"})["prompt"])
        except TemplateError:  # the template cannot write their schemas
            prompt = None
        return prompt, {**inputs, "tools": tools}

    def _rendered(
        self,
        request: ChatRequest,
        params: Mapping[str, Any],
        schema: Any,
        *,
        several: bool | None = None,
    ) -> RenderedChat:
        prompt, opening = params["prompt"], params["generation_prompt"]
        text, grammar = params["grammar"], None
        if text and params["grammar_lazy"]:
            patterns = tuple(params["trigger_patterns"])
            grammar = GrammarSpec(text, lazy=True, trigger_patterns=patterns)
        elif text:
            grammar = GrammarSpec(text, prefill=opening)
        triggers = params["grammar_triggers"]
        have_texts = all(trigger["type"] in ("word", "token") for trigger in triggers)
        delimiters = self._delimiters(params)
        if several is None:
            several = self._may_repeat(request.parallel_tool_calls)
        return RenderedChat(
            prompt=prompt,
            generation_prompt=opening,
            stops=tuple(params["additional_stops"]),
            grammar=grammar,
            grammar_prefill="" if grammar is None else grammar.prefill,
            preserved_tokens=tuple(params["preserved_tokens"]),
            parser=params["parser"],
            plain=params["plain"],
            delimiters=delimiters,
            message_starts=find_starts(prompt, delimiters, opening),
            schema=schema,
            supports_thinking=params["supports_thinking"],
            thinking_start=params["thinking_start_tag"],
            thinking_ends=tuple(params["thinking_end_tags"]),
            calls_tools=request.uses_tools,
            call_marks=tuple(trigger["value"] for trigger in triggers) if have_texts else (),
            plain_calls=plain_calls_of(request, several, own="unmarked" in params),
        )

    # ---- what is learned once about a template -------------------------------------------------

    def _look_for_languages(self, request: ChatRequest) -> None:
        """Say once that a template for translations has to know the languages."""
        if not self._translates or all(map(request.template_kwargs.get, _LANGUAGES)):
            return
        self._translates = False
        _log.warning(
            "this chat template translates the texts of the user; without %s and %s in "
            "chat_template_kwargs, it translates from en-GB to en-GB",
            *_LANGUAGES,
        )

    @cached_property
    def _translates(self) -> bool:
        return all(f"[{code}]" in self.source for code in _LANGUAGES)

    @cached_property
    def _shows_schema(self) -> bool:
        """Whether the template itself writes a requested schema into the prompt."""
        ask = {"messages": [{"role": "user", "content": "hello"}], "now": 0}
        try:
            shown = self._engine.apply({**ask, "json_schema": {"type": "object"}})
            return bool(shown["prompt"] != self._engine.apply(ask)["prompt"])
        except TemplateError:
            return False

    @cached_property
    def _takes_alternatives(self) -> bool:
        """Whether the arguments of a call may be a choice between objects.

        Families that write each argument with a mark of its own need to know the arguments.
        """
        known = {"type": "object", "properties": {"known": {"type": "integer"}}}
        tool = Tool("probe", "", {"anyOf": [known, {**known, "required": ["known"]}]})
        ask = {"messages": [{"role": "user", "content": "hello"}], "now": 0}
        try:
            asked = {**ask, "tools": tool_values([tool]), "tool_choice": "required"}
            return "known" in self._engine.apply(asked)["grammar"]
        except TemplateError:
            return False

    def _delimiters(self, params: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        with self._lock:
            if self._learned is None:
                self._learned = learn_delimiters(self._prompt_of)
        known = [(d["role"], d["delimiter"]) for d in params["message_delimiters"]]
        return tuple(dict.fromkeys([*known, *self._learned]))

    def _prompt_of(self, messages: list[dict[str, Any]]) -> str:
        inputs = {"messages": messages, "add_generation_prompt": False, "now": 0}
        return self._engine.prompt(inputs)
