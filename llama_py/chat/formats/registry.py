"""Chat formats by name: those of the table, registered functions, and templates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from llama_py.chat.constraints import constrain_plain, render_constrained
from llama_py.chat.formats.builtin import BUILTIN_PREFIX, BuiltinFormat
from llama_py.chat.formats.named import FORMATS, NamedFormat
from llama_py.chat.formats.tools import CHATML_TOOLS
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.templates.formatter import ChatFormatter
from llama_py.chat.templates.inputs import choice_value, message_values, tool_values
from llama_py.chat.templates.system import FixedSlots, place_system
from llama_py.chat.templates.template import ChatTemplate
from llama_py.errors import ParameterError, TemplateError

__all__ = [
    "ChatFormat",
    "ChatHandler",
    "chat_formats",
    "get_chat_format",
    "register_chat_format",
    "unregister_chat_format",
]

F = TypeVar("F", bound=ChatFormatter)


class ChatHandler(Protocol):
    """A function that replaces ``Llama.create_chat_completion``, with its arguments and results."""

    def __call__(
        self, *, llama: Any, messages: list[dict[str, Any]], stream: bool = False, **kwargs: Any
    ) -> dict[str, Any] | Iterator[dict[str, Any]]: ...


@runtime_checkable
class ChatFormat(Protocol):
    """A chat format: renders conversations in place of the model's template."""

    def render(self, request: ChatRequest, model: Any) -> RenderedChat:
        """Render a conversation for a model (``core.model.Model``)."""

    def sources(self, model: Any) -> tuple[str, ...]:
        """The texts of its templates, as far as it has any."""


class _Table:
    """A format of the table."""

    def __init__(self, entry: NamedFormat) -> None:
        self._entry = entry

    def render(self, request: ChatRequest, model: Any) -> RenderedChat:
        return constrain_plain(self._entry.render(request), _vocab(model))

    def sources(self, model: Any) -> tuple[str, ...]:
        return (self._entry.source,)


class _Function:
    """A caller's function that makes the prompt."""

    def __init__(self, name: str, formatter: ChatFormatter) -> None:
        self._name = name
        self._formatter = formatter

    def render(self, request: ChatRequest, model: Any) -> RenderedChat:
        messages = place_system(request.messages, FixedSlots(several=False))
        own: dict[str, Any] = {
            "messages": message_values(messages),
            "tools": tool_values(request.shown_tools) or None,
            "tool_choice": choice_value(request.tool_choice) if request.shown_tools else None,
        }
        response = self._formatter(**{**request.template_kwargs, **own})
        if not hasattr(response, "prompt"):
            raise TemplateError(
                f"the chat format {self._name!r} returned {type(response).__name__}; it must "
                "return a ChatFormatterResponse"
            )
        if response.stopping_criteria is not None:
            raise TemplateError(
                f"the chat format {self._name!r} returns stopping criteria; pass them to "
                "create_chat_completion(stopping_criteria=...), or return texts in stop"
            )
        prompt, stop, vocab = response.prompt, response.stop, _vocab(model)
        if response.added_special and vocab is not None and vocab.add_bos and vocab.bos >= 0:
            # The tokenizer adds it as a token.
            prompt = prompt.removeprefix(vocab.piece(vocab.bos).decode("utf-8", "replace"))
        stops = (stop,) if isinstance(stop, str) else tuple(() if stop is None else stop)
        rendered = RenderedChat(prompt=prompt, stops=stops, schema=request.schema)
        return constrain_plain(rendered, vocab)

    def sources(self, model: Any) -> tuple[str, ...]:
        return ()


class _Template:
    """A format that is a Jinja template: one of this package, or the model's own."""

    def __init__(self, text: str | None) -> None:
        self._text = text
        self._made: tuple[Any, ChatTemplate] | None = None

    def render(self, request: ChatRequest, model: Any) -> RenderedChat:
        return render_constrained(self._template(model), request, _vocab(model))

    def sources(self, model: Any) -> tuple[str, ...]:
        return self._template(model).sources

    def _template(self, model: Any) -> ChatTemplate:
        if self._made is None or self._made[0] is not model:
            self._made = model, ChatTemplate.from_model(model, self._text)
        return self._made[1]


def _vocab(model: Any) -> Any:
    return getattr(model, "vocab", None)


#: Models that call tools in a form of their own have it in their template.
_TEMPLATES: Mapping[str, str | None] = {
    "chatml-function-calling": CHATML_TOOLS,
    "functionary": None,
    "functionary-v1": None,
    "functionary-v2": None,
}
_OWN: dict[str, ChatFormatter] = {}


def chat_formats() -> list[str]:
    """The names of all chat formats, sorted."""
    return sorted({*FORMATS, *_TEMPLATES, *_OWN})


def get_chat_format(name: str) -> ChatFormat:
    """A chat format by its name.

    Raises:
        ParameterError: there is none of that name.
    """
    if name in _OWN:
        return _Function(name, _OWN[name])
    if name in FORMATS:
        return _Table(FORMATS[name])
    if name in _TEMPLATES:
        return _Template(_TEMPLATES[name])
    if name.startswith(BUILTIN_PREFIX):
        return BuiltinFormat(name.removeprefix(BUILTIN_PREFIX))
    import difflib  # for the error only

    near = difflib.get_close_matches(name, chat_formats(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(chat_formats())}"
    raise ParameterError(f"there is no chat format {name!r}; {hint}")


def register_chat_format(name: str, *, overwrite: bool = False) -> Callable[[F], F]:
    """A decorator that makes a formatter known under a name.

    The formatter is called with ``messages`` (OpenAI's), ``tools``, ``tool_choice`` and the
    request's template variables, and returns a ``ChatFormatterResponse``.

    Raises:
        ParameterError: the name is taken, and ``overwrite`` is False.
    """
    if name in chat_formats() and not overwrite:
        raise ParameterError(f"there is a chat format {name!r} already; pass overwrite=True")

    def register(formatter: F) -> F:
        _OWN[name] = formatter
        return formatter

    return register


def unregister_chat_format(name: str) -> None:
    """Forget a registered formatter.

    Raises:
        ParameterError: none was registered under the name.
    """
    if _OWN.pop(name, None) is None:
        raise ParameterError(f"no chat format was registered as {name!r}")
