"""Chat formats that are functions making a prompt, and the handlers made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from llama_py.chat.constraints import LlamaGrammar as NativeGrammar
from llama_py.compat.converting import completion_to_call, completion_to_chat
from llama_py.compat.llama_cpp.llama_grammar import JSON_GBNF, LlamaGrammar
from llama_py.errors import GrammarError

__all__ = [
    "ChatFormatter",
    "ChatFormatterResponse",
    "Jinja2ChatFormatter",
    "grammar_of_format",
    "grammar_of_schema",
    "handler_of",
    "named_prompt",
]


@dataclass
class ChatFormatterResponse:
    """A prompt, and what ends its reply.

    Attributes:
        prompt: the text.
        stop: texts that end the reply.
        stopping_criteria: functions that end the reply.
        added_special: the prompt begins with BOS already.
    """

    prompt: str
    stop: str | list[str] | None = None
    stopping_criteria: Any = None
    added_special: bool = False


class ChatFormatter(Protocol):
    """A function that makes the prompt of a conversation."""

    def __call__(self, *, messages: list[Any], **kwargs: Any) -> ChatFormatterResponse:
        """The prompt."""


class Jinja2ChatFormatter(ChatFormatter):
    """A chat format that is a Jinja template.

    Args:
        template: the template.
        eos_token, bos_token: texts that it may use; the first one ends the reply.
        add_generation_prompt: end the prompt with the opening of an assistant message.
        stop_token_ids: tokens that end the reply.
    """

    def __init__(
        self,
        template: str,
        eos_token: str,
        bos_token: str,
        add_generation_prompt: bool = True,
        stop_token_ids: list[int] | None = None,
    ) -> None:
        from llama_py.chat.templates.python_jinja import JinjaTemplate

        self.template = template
        self.eos_token = eos_token
        self.bos_token = bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids = None if stop_token_ids is None else set(stop_token_ids)
        self._template = JinjaTemplate(template)

    @staticmethod
    def strftime_now(f: str) -> str:
        """The local time in a format of ``strftime``."""
        return datetime.now().strftime(f)

    @staticmethod
    def tojson(
        x: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """A value as JSON."""
        return json.dumps(
            x,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def __call__(
        self,
        *,
        messages: list[Any],
        functions: list[Any] | None = None,
        function_call: Any = None,
        tools: list[Any] | None = None,
        tool_choice: Any = None,
        **kwargs: Any,
    ) -> ChatFormatterResponse:
        """The prompt of a conversation; further arguments are variables of the template."""
        values = {
            "messages": messages,
            "eos_token": self.eos_token,
            "bos_token": self.bos_token,
            "add_generation_prompt": self.add_generation_prompt,
            "functions": functions,
            "function_call": function_call,
            "tools": tools,
            "tool_choice": tool_choice,
            "strftime_now": self.strftime_now,
            **kwargs,
        }
        prompt = self._template.render(values)
        criteria = None if self.stop_token_ids is None else [self._ends]
        return ChatFormatterResponse(prompt, [self.eos_token], criteria, added_special=True)

    def _ends(self, tokens: Any, row: Any) -> bool:
        return tokens[-1] in (self.stop_token_ids or ())

    def to_chat_handler(self) -> Callable[..., Any]:
        """A chat handler that uses it."""
        return handler_of(self)


def handler_of(chat_formatter: Callable[..., Any]) -> Callable[..., Any]:
    """A chat handler that makes the prompt with a formatter and completes it."""

    def handler(*, llama: Any, messages: list[Any], **options: Any) -> Any:
        """A reply, or with ``stream`` an iterator of its chunks."""
        return _Formatted(chat_formatter, llama, messages, options).answer()

    return handler


#: Arguments of a chat that its prompt or its grammar come from, and not its completion.
_OF_PROMPT = ("functions", "function_call", "tools", "tool_choice")
_OF_REPLY = (
    "response_format",
    "logprobs",
    "top_logprobs",
    "stream",
    "stop",
    "grammar",
    "max_tokens",
)
_OF_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "tfs_z",
    "mirostat_mode",
    "mirostat_tau",
    "mirostat_eta",
    "model",
    "logits_processor",
    "logit_bias",
)


class _Formatted:
    """One call of a handler made of a formatter."""

    def __init__(
        self, formatter: Callable[..., Any], llm: Any, messages: Any, options: Mapping[str, Any]
    ) -> None:
        self._llm = llm
        self._options = options
        known = (*_OF_PROMPT, *_OF_REPLY, *_OF_SAMPLING)
        extra = {name: each for name, each in options.items() if name not in known}
        of_prompt = {name: options.get(name) for name in _OF_PROMPT}
        self._formatted = formatter(messages=messages, **of_prompt, **extra)

    def answer(self) -> Any:
        stream = bool(self._options.get("stream"))
        tool = self._tool()
        found = self._llm.create_completion(
            prompt=self._prompt(),
            max_tokens=self._options.get("max_tokens"),
            stream=stream,
            stop=self._stops(),
            stopping_criteria=self._formatted.stopping_criteria,
            logprobs=self._options.get("top_logprobs") if self._options.get("logprobs") else None,
            grammar=self._grammar(tool),
            **self._sampling(),
        )
        if tool is not None:
            return completion_to_call(tool["function"]["name"], found, stream)
        return completion_to_chat(found, stream)

    def _prompt(self) -> list[int]:
        made = self._formatted
        tokens: list[int] = self._llm.tokenize(
            made.prompt.encode("utf-8"), add_bos=not made.added_special, special=True
        )
        return tokens

    def _sampling(self) -> dict[str, Any]:
        given = {name: self._options[name] for name in _OF_SAMPLING if name in self._options}
        return {"temperature": 0.2, "repeat_penalty": 1.1, **given}

    def _stops(self) -> list[str]:
        given, own = self._options.get("stop"), self._formatted.stop
        stops = [given] if isinstance(given, str) else list(given or ())
        return [*stops, *([own] if isinstance(own, str) else own or ())]

    def _tool(self) -> Any:
        """The tool that has to be called, or None."""
        options = self._options
        functions, choice = options.get("functions"), options.get("tool_choice")
        tools = options.get("tools")
        if functions is not None:
            tools = [{"type": "function", "function": function} for function in functions]
        call = options.get("function_call")
        if isinstance(call, dict) and "name" in call:
            choice = {"type": "function", "function": {"name": call["name"]}}
        if not isinstance(choice, dict) or tools is None:
            return None
        name = choice["function"]["name"]
        tool = next((each for each in tools if each["function"]["name"] == name), None)
        if tool is None:
            raise ValueError(f"Tool choice '{name}' not found in tools.")
        return tool

    def _grammar(self, tool: Any) -> Any:
        wanted = self._options.get("response_format")
        if tool is not None:
            return grammar_of_schema(json.dumps(tool["function"]["parameters"]))
        if wanted is not None and wanted["type"] in ("json_object", "json_schema"):
            return grammar_of_format(wanted)
        return self._options.get("grammar")


def grammar_of_format(response_format: Any, verbose: bool = False) -> NativeGrammar | None:
    """The grammar of a ``response_format``; None if that wants no JSON."""
    kind = response_format["type"]
    if kind == "json_schema":
        return grammar_of_schema(json.dumps(response_format["json_schema"]["schema"]))
    if kind != "json_object":
        return None
    if "schema" in response_format:
        return grammar_of_schema(json.dumps(response_format["schema"]))
    return LlamaGrammar.from_string(JSON_GBNF)


def grammar_of_schema(
    schema: str, verbose: bool = False, fallback_to_json: bool = True
) -> NativeGrammar:
    """The grammar of a JSON schema; that of any JSON for one that cannot be expressed."""
    try:
        return LlamaGrammar.from_json_schema(schema)
    except GrammarError:
        if not fallback_to_json:
            raise
        return LlamaGrammar.from_string(JSON_GBNF)


def named_prompt(name: str, messages: list[Any]) -> ChatFormatterResponse:
    """The prompt of a conversation in a format of llama_py; the tokenizer adds BOS."""
    from llama_py.chat.formats import get_chat_format
    from llama_py.chat.messages import ChatRequest
    from llama_py.dialects.openai.messages import read_messages

    rendered = get_chat_format(name).render(ChatRequest(read_messages(messages)), None)
    return ChatFormatterResponse(rendered.prompt, list(rendered.stops) or None)
