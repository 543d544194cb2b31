"""Conversations to prompts, for one loaded model: its template, or the format that replaces it.

What only chats need is imported with the first of them, if it was not while the weights were read
(``api/opening.py``): templates and Jinja are a tenth of the time to a completion's first token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.api.port import ModelPort
from llama_py.core.vocab import Vocab
from llama_py.errors import (
    LlamaError,
    ParameterError,
    ParameterTypeError,
    shown,
)
from llama_py.gguf.check import naming, read_gguf
from llama_py.media.reading import MediaReading
from llama_py.options.checks import whole_text

if TYPE_CHECKING:
    from llama_py.chat.conversation import AudioPart, ImagePart
    from llama_py.chat.formats import ChatFormat
    from llama_py.chat.messages import ChatRequest
    from llama_py.chat.rendered import RenderedChat
    from llama_py.chat.templates.markup import Markup
    from llama_py.chat.templates.template import ChatTemplate
    from llama_py.engine.media import Medium
    from llama_py.options.values import ChatPolicy

__all__ = [
    "NO_TEMPLATE",
    "ChatSettings",
    "ModelContext",
    "Rendering",
    "check_template",
    "find_format",
    "projector_senses",
]

_log = logging.getLogger("llama_py")


@dataclass(slots=True)
class ChatSettings:
    """What calls get that say nothing else. It may be changed between calls."""

    model_path: str
    seed: int
    last_n_tokens_size: int
    spm_infill: bool
    special_tokens_in_content: str
    json_calls: bool
    overflow: ChatPolicy | None


def check_template(text: str) -> str | None:
    """Raise unless it parses: before the weights are loaded, which may take minutes.

    Returns:
        The name of the chat format that it means, if it is the name of a template.
    """
    from llama_py.chat.formats.builtin import builtin_name
    from llama_py.chat.templates.template import ChatTemplate

    whole_text(text, "chat_template")
    name = builtin_name(text)
    if name is not None:
        return name
    ChatTemplate.from_text(text).close()
    return None


def projector_senses(path: Path) -> tuple[bool, bool]:
    """Whether a projector sees, and whether it hears, as its header says.

    Raises:
        ModelNotFoundError, InvalidModelError: there is no such file, or it is not a GGUF.
    """
    with naming(path, "projector"):
        scalars = read_gguf(path).scalars
    sees, hears = (bool(scalars.get(f"clip.has_{kind}_encoder")) for kind in ("vision", "audio"))
    return sees, hears


def find_format(name: str | None) -> ChatFormat | None:
    """The chat format of this name, None for None.

    Raises:
        ParameterError: there is none.
    """
    if name is not None and not isinstance(name, str):
        raise ParameterTypeError(f"chat_format must be a name or None, not {shown(name)}")
    if not name:
        return None
    from llama_py.chat.formats import get_chat_format

    return get_chat_format(name)


#: Said where a conversation is rendered for a model whose file has no chat template.
NO_TEMPLATE = (
    "the model has no chat template, so ChatML is used; if it was not trained on that (a base "
    "model was trained on no chats at all), replies are poor: pass chat_template or chat_format, "
    "or use create_completion"
)


@dataclass(frozen=True, slots=True)
class ModelContext:
    """What the parsing of a call asks about a model (``dialects.context.CallContext``), as it is
    when the call comes."""

    vocab: Vocab
    metadata: Mapping[str, str]
    model_path: str
    seed: int
    last_n_tokens_size: int
    spm_infill: bool
    render_chat: Callable[[ChatRequest], RenderedChat]
    medium: Callable[[ImagePart | AudioPart, str], Medium]
    sees: bool = False
    hears: bool = False
    max_media: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None


class Rendering:
    """Renders conversations.

    Args:
        template: Jinja text in place of the model's own, or None.
        chat_format: the name of a format in place of any template, or None.
        tool_form: how tools are declared and called (``ChatTemplate.from_model``).
    """

    def __init__(
        self,
        port: ModelPort,
        settings: ChatSettings,
        template: str | None,
        chat_format: str | None,
        tool_form: str = "auto",
    ) -> None:
        self._port = port
        self._settings = settings
        self._text = template
        self._tool_form = tool_form
        self._template: ChatTemplate | None = None
        self._senses: tuple[bool, bool] | None = None
        self.chat_format = chat_format

    @property
    def template(self) -> ChatTemplate:
        """The template that conversations are rendered with, unless there is a ``chat_format``.

        Raises:
            TemplateError: the model's own does not parse; pass ``chat_template`` or
                ``chat_format``.
            ClosedError: after ``close()``.
        """
        model, template = self._port.model, self._template
        if template is not None:
            return template
        from llama_py.chat.templates.template import ChatTemplate

        template = ChatTemplate.from_model(model, self._text, tool_form=self._tool_form)
        if not template.explicit:
            _log.warning("%s: %s", Path(self._settings.model_path).name, NO_TEMPLATE)
        self._template = template
        if model.closed:  # meanwhile: ``close()`` may not have seen it
            template.close()
        return template

    @property
    def chat_format(self) -> str | None:
        """The name of the chat format in place of the template, or None."""
        return self._chat_format

    @chat_format.setter
    def chat_format(self, name: str | None) -> None:
        self._formatter = find_format(name)
        self._chat_format = name
        self._markup: Markup | None = None  # another format writes other marks

    def call_context(self) -> ModelContext:
        """The facts for a call that comes now."""
        model, settings, media = self._port.model, self._settings, self._port.media
        sees, hears = self.senses
        reading = MediaReading()
        return ModelContext(
            model.vocab,
            model.metadata,
            settings.model_path,
            settings.seed,
            settings.last_n_tokens_size,
            settings.spm_infill,
            partial(self.render, reading=reading),
            partial(self._read_medium, reading),
            sees,
            hears,
            0 if media is None else media.limits.most_media,
        )

    @property
    def senses(self) -> tuple[bool, bool]:
        """Whether the model sees, and whether it hears; no projector is loaded to find out."""
        media = self._port.media
        if media is None or media.path is None:
            return False, False
        if media.loaded is not None:
            return media.loaded.projector.sees, media.loaded.projector.hears
        if self._senses is None:
            try:
                self._senses = projector_senses(media.path)
            except (LlamaError, OSError):  # whoever needs it is told
                self._senses = False, False
        return self._senses

    def render(self, request: ChatRequest, reading: MediaReading | None = None) -> RenderedChat:
        """The prompt of a conversation, and how its reply is to be read.

        Args:
            reading: its pictures and sounds so far, if it is rendered several times.

        Raises:
            ClosedError: after ``close()``, also where nothing of the model is needed.
        """
        from llama_py.chat.constraints import render_constrained
        from llama_py.chat.content import render_content
        from llama_py.chat.media import render_media

        model, formatter = self._port.model, self._formatter
        model.check_open()

        def as_it_is(request: ChatRequest) -> RenderedChat:
            if formatter is not None:
                return formatter.render(request, model)
            return render_constrained(self._template or self.template, request, model.vocab)

        if request.json_calls is None and not self._settings.json_calls:
            request = replace(request, json_calls=False)
        mode = self._settings.special_tokens_in_content

        def safely(request: ChatRequest) -> RenderedChat:
            return render_content(request, as_it_is, self._markup_of_chats, mode)

        media = self._port.media
        most = media.limits.most_media if media is not None else 0
        read = partial(self._read_medium, reading or MediaReading())
        return render_media(request, safely, read, most)

    def tokenize_plain(self, text: str | bytes, add_bos: bool) -> list[int]:
        """Tokens of a text in which nothing is a special token, as in what users say."""
        from llama_py.dialects.chat_requests import byte_ranges
        from llama_py.memory.text_keys import TextKeys

        said = text if isinstance(text, str) else bytes(text).decode("utf-8", "surrogateescape")
        raw = said.encode("utf-8", "surrogateescape" if said is not text else "surrogatepass")
        keys = TextKeys(self._port.model.vocab)
        places = byte_ranges(said, self._markup_of_chats().token_ranges(said))
        return keys.read(keys.mark(raw, places), add_special=add_bos)

    def _read_medium(
        self, reading: MediaReading, part: ImagePart | AudioPart, where: str
    ) -> Medium:
        media = self._port.media
        if media is None:
            raise ParameterError(
                f"{where}: this model does not generate, so it takes no pictures or sounds"
            )
        return media.read(part, getattr(part, "where", "") or where, reading)

    def _markup_of_chats(self) -> Markup:
        if self._markup is None:
            from llama_py.chat.templates.markup import Markup

            formatter, model = self._formatter, self._port.model
            sources = formatter.sources(model) if formatter else self.template.sources
            self._markup = Markup.of(model.vocab.special_texts(), sources)
        return self._markup

    def close(self) -> None:
        """Free the template. To be called after the model was closed."""
        if self._template is not None:
            self._template.close()
