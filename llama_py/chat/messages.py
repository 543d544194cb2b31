"""``ChatRequest``: a conversation and how the model is to go on with it, in no dialect's form.

Dialects read their own forms into it, and report what is wrong with those. What holds for all of
them is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_py.chat.checks import check_json
from llama_py.chat.conversation import (
    Message,
    Tool,
    ToolCall,
    ToolChoice,
)
from llama_py.chat.schemas.bounds import check_bounds, check_tools
from llama_py.errors import ParameterError, ParameterTypeError, shown
from llama_py.options import LOAD

__all__ = ["ChatRequest", "check_names"]

CONTINUATIONS = (True, False, "content", "reasoning_content")
_AUTO = ToolChoice()
#: What a template sees under these names is the request's.
_NO_VARIABLES = ("messages", "tools")


def check_names(tools: Sequence[Tool]) -> None:
    """Raise if two tools have the same name."""
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ParameterError(f"two tools are called {twice!r}; a call could mean either")


def _is_about_tools(message: Message) -> bool:
    return message.role == "tool" or any(isinstance(part, ToolCall) for part in message.parts)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat request; checked when it is made.

    Attributes:
        messages: the conversation.
        tools: what the model may call.
        tool_choice: whether it may, or has to.
        parallel_tool_calls: allow several calls in a reply; None means if the template supports it,
            and that a named tool is called once: it is made False then.
        json_calls: a reply that as a whole is a call in plain JSON is that call (``plain_calls``);
            None is the default of the model that was loaded.
        schema: the JSON schema that the reply has to follow, or None.
        template_kwargs: further variables for the template, of any JSON type.
        enable_thinking: let a reasoning model reason; None is the model's default (yes).
        reasoning_effort: passed to templates that use it; ``"none"`` turns reasoning off.
        reasoning_budget: most tokens of reasoning (the engine enforces it); None for no limit.
        reasoning_format: ``"auto"`` parses reasoning out of the reply, ``"none"`` leaves it in.
        continue_final_message: the last message is the beginning of the reply. ``"content"`` and
            ``"reasoning_content"`` name the part that continues; True detects it.
        add_generation_prompt: end the prompt with the opening of an assistant message.
        now: the current time for the template, in seconds since the epoch; None for the clock's.
        special_tokens_in_content: what the texts of special tokens in user and tool messages are:
            ``"text"``, ``"parse"`` (the tokens), or ``"refuse"`` (an error); None is the default
            of the model that was loaded.
        uses_tools: the reply may contain tool calls.
        shown_tools: the tools that the prompt lists.
        about_tools: it lists some, or there are calls or results in the conversation.

    Raises:
        ParameterError: an attribute is wrong, or they contradict each other.
        GrammarError: a schema is too large, or nothing fits it.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = _AUTO
    parallel_tool_calls: bool | None = None
    json_calls: bool | None = None
    schema: Any = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    reasoning_format: str = "auto"
    continue_final_message: bool | str = False
    add_generation_prompt: bool = True
    now: int | None = None
    special_tokens_in_content: str | None = None
    uses_tools: bool = field(init=False, repr=False, compare=False)
    shown_tools: tuple[Tool, ...] = field(init=False, repr=False, compare=False)
    about_tools: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.messages:
            raise ParameterError("messages is empty; a chat needs at least one message")
        for index, message in enumerate(self.messages):
            if not isinstance(message, Message):
                raise ParameterTypeError(
                    f"messages[{index}] must be a Message, not {shown(message)}; "
                    "llm.render_chat(messages) takes messages in OpenAI's form"
                )
        # With the choice "none", tools are not listed, because the model would write a call as
        # text. A conversation that contains calls keeps the list, and with it its cached prefix.
        usable = self.tool_choice.mode != "none"
        called = any(map(_is_about_tools, self.messages))
        listed = self.tools if called or usable else ()
        object.__setattr__(self, "shown_tools", listed)
        object.__setattr__(self, "about_tools", called or bool(listed))
        object.__setattr__(self, "uses_tools", bool(self.tools) and usable)
        if self.tools:
            check_names(self.tools)
        self._check_choice()
        if self.schema is not None:
            check_bounds(self.schema)
        if self.tools:
            check_tools([tool.schema_of_calls for tool in self.tools], self.tool_names)
        self._check_options()
        self._check_continuation()

    def _check_choice(self) -> None:
        choice, names = self.tool_choice, self.tool_names
        if choice.mode == "named" and choice.name not in names:
            known = ", ".join(names) or "none are given"
            raise ParameterError(f"tool_choice names {shown(choice.name)}; the tools are: {known}")
        unknown = next((name for name in choice.allowed if name not in names), None)
        if unknown is not None:
            raise ParameterError(f"tool_choice allows {shown(unknown)}, which is no tool")
        if choice.mode == "required" and not names:
            raise ParameterError('tool_choice is "required", but there are no tools')
        if choice.mode == "named" and self.parallel_tool_calls is None:
            object.__setattr__(self, "parallel_tool_calls", False)

    def _check_options(self) -> None:
        variables: Any = self.template_kwargs
        if not isinstance(variables, Mapping):
            raise ParameterTypeError(
                f"chat_template_kwargs must be an object, not {shown(variables)}"
            )
        if variables:
            check_json(variables, "chat_template_kwargs")
        for name in _NO_VARIABLES:
            if name in variables:
                raise ParameterError(
                    f"chat_template_kwargs.{name} would replace the conversation's own; pass "
                    f"{name} as an argument of the call"
                )
        if self.reasoning_format not in ("auto", "none", "deepseek", "deepseek-legacy"):
            raise ParameterError(
                f'reasoning_format is {shown(self.reasoning_format)}; expected "auto" or "none"'
            )
        if self.special_tokens_in_content is not None:
            LOAD["special_tokens_in_content"].read(self.special_tokens_in_content)
        budget = self.reasoning_budget
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int)):
            raise ParameterTypeError(f"reasoning_budget must be an integer, not {shown(budget)}")

    def _check_continuation(self) -> None:
        if self.continue_final_message not in CONTINUATIONS:
            raise ParameterError(
                f"continue_final_message is {shown(self.continue_final_message)}; expected "
                'True, False, "content" or "reasoning_content"'
            )
        if not self.continue_final_message:
            return
        last = self.messages[-1]
        if last.role != "assistant" or _is_about_tools(last):
            raise ParameterError(
                "continue_final_message needs an assistant message without tool calls at the end; "
                f'the last message has the role "{last.role}"'
            )

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools, in order."""
        return tuple(tool.name for tool in self.tools)

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that the reply may call, as ``tool_choice`` says."""
        choice = self.tool_choice
        names = (choice.name,) if choice.mode == "named" else choice.allowed
        return tuple(tool for tool in self.tools if tool.name in names) if names else self.tools
