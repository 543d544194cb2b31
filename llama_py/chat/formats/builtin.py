"""llama.cpp's own chat templates, which have names and are C++: ``chat_template="command-r"``."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from llama_py.chat.constraints import constrain_plain
from llama_py.chat.conversation import AudioPart, ImagePart, Message, Text
from llama_py.chat.messages import ChatRequest
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.templates.system import FixedSlots, place_system
from llama_py.core.named_templates import apply_named_template, named_templates
from llama_py.errors import ParameterError, TemplateError, shown

__all__ = ["BUILTIN_PREFIX", "BuiltinFormat", "builtin_name", "is_template", "nearest"]

#: What stands before the name of one of them where it is the name of a chat format.
BUILTIN_PREFIX = "llama.cpp:"
#: ChatML is Jinja in llama.cpp as well, with tools and all.
_JINJA = "chatml"
#: Stands for what somebody says, where only the texts around it are looked for.
_GAP = "\x01"


def is_template(given: str) -> bool:
    """Whether a text is a template or the name of one, and not the name of a file with one."""
    return any(mark in given for mark in "{\n") or given in named_templates()


def builtin_name(template: str) -> str | None:
    """The name of the chat format that this ``chat_template`` names; None for the text of one.

    Raises:
        ParameterError: it is neither: every prompt would be these words, whatever anybody says.
    """
    if template == _JINJA or any(mark in template for mark in "{\n"):
        return None
    if template in named_templates():
        return f"{BUILTIN_PREFIX}{template}"
    raise ParameterError(
        f"chat_template={shown(template)} is neither a Jinja template (the text itself, not the "
        f"name of a file) nor the name of one of llama.cpp's: {nearest(template)}"
    )


def nearest(name: str) -> str:
    """A known name that is like an unknown one, or any."""
    import difflib  # for the error only

    near = difflib.get_close_matches(name, named_templates(), n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(named_templates())}"


class BuiltinFormat:
    """One of llama.cpp's templates. It knows what system, user and assistant say, and no tools."""

    def __init__(self, name: str) -> None:
        self._name = name
        if name not in named_templates():
            raise ParameterError(f"llama.cpp has no template {shown(name)}: {nearest(name)}")

    def render(self, request: ChatRequest, model: Any) -> RenderedChat:
        """Render a conversation.

        Raises:
            TemplateError: there are tools or their results, which it cannot express.
        """
        messages = place_system(request.messages, FixedSlots())
        said = [self._said(each) for each in messages]
        if request.uses_tools:
            raise self._no_tools()
        before = apply_named_template(self._name, said[:-1], opening=False)
        whole = apply_named_template(self._name, said, opening=False)
        if request.continue_final_message:
            text = said[-1][1].strip()
            at = whole.rfind(text, len(before)) if text else -1
            if at >= 0:  # up to what there is of the reply
                prompt = whole[: at + len(text)]
            else:
                prompt = apply_named_template(self._name, said[:-1], opening=True) + said[-1][1]
            starts: tuple[int, ...] = (len(before),)
        else:
            opening = request.add_generation_prompt
            prompt = apply_named_template(self._name, said, opening)
            starts = len(before), len(whole)
        reply = len(before) if request.continue_final_message else len(whole)
        rendered = RenderedChat(
            prompt=prompt,
            generation_prompt=prompt[reply:],
            message_starts=tuple(start for start in starts if start),
            schema=request.schema,
        )
        return constrain_plain(rendered, getattr(model, "vocab", None))

    def sources(self, model: Any) -> tuple[str, ...]:
        """Its fixed texts."""
        return (self._source,)

    @cached_property
    def _source(self) -> str:
        said = [(role, _GAP) for role in ("system", "user", "assistant", "user")]
        return apply_named_template(self._name, said, opening=True).replace(_GAP, "\n")

    def _said(self, message: Message) -> tuple[str, str]:
        texts = [
            part.text if isinstance(part, Text) else part.marker
            for part in message.parts
            if isinstance(part, Text | ImagePart | AudioPart)
        ]
        if message.role == "tool" or len(texts) < len(message.parts):
            raise self._no_tools()
        role = "system" if message.role == "developer" else message.role
        return role, "\n".join(texts)

    def _no_tools(self) -> TemplateError:
        return TemplateError(
            f"the template {self._name!r} of llama.cpp has no form for tools and reasoning; leave "
            "them out, or use a template that is Jinja (the model's own, if it has one)"
        )
