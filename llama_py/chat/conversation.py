"""A conversation as data, in no provider's form: messages of parts, tools, and which to call.

Dialects read their own forms into these, and templates are given what is made from them. Nothing
here is checked; who makes them has checked what came in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "AudioPart",
    "ImagePart",
    "Message",
    "Part",
    "Role",
    "Text",
    "Thinking",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "ToolResult",
]

Role = Literal["system", "developer", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Text:
    """Words."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture: its bytes, or where it is.

    Attributes:
        data: the encoded file; empty if there is only a ``url``, or an array.
        media_type: such as ``image/png``; empty if it is not known.
        marker: what the template gets in its place (``chat.media``).
        decoded: what a program has in place of a file (``media.arrays.Decoded``).
    """

    data: bytes = field(default=b"", repr=False)
    media_type: str = ""
    url: str = field(default="", repr=False)
    marker: str = ""
    decoded: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AudioPart:
    """A recording; its attributes are those of ``ImagePart``."""

    data: bytes = field(default=b"", repr=False)
    media_type: str = ""
    url: str = field(default="", repr=False)
    marker: str = ""
    decoded: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Thinking:
    """The reasoning of an assistant, before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant made.

    Attributes:
        arguments: JSON text of an object.
        id: what its result refers to; may be empty.
    """

    name: str
    arguments: str = "{}"
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call.

    Attributes:
        call_id: the call's id.
        content: texts and pictures.
        is_error: the call failed.
        name: of the tool, where it is known.
    """

    call_id: str
    content: tuple[Text | ImagePart | AudioPart, ...] = ()
    is_error: bool = False
    name: str = ""


Part = Text | ImagePart | AudioPart | Thinking | ToolCall | ToolResult


@dataclass(frozen=True, slots=True)
class Message:
    """One message: a role and its content.

    Attributes:
        parts: in order. Assistants think, speak and call; messages of the role ``tool`` have one
            ``ToolResult``; all others have texts, pictures and sounds.
        name: of the speaker, or empty.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    name: str = ""

    @property
    def text(self) -> str:
        """Its texts, without what separates them."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called.

    Attributes:
        parameters: JSON schema of its arguments, an object.
        enforced: what they have to fit in its place, None for itself.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    enforced: Mapping[str, Any] | None = None

    @property
    def schema_of_calls(self) -> Mapping[str, Any]:
        """The schema that the arguments of a call have to fit."""
        return self.parameters if self.enforced is None else self.enforced


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether tools are called.

    Attributes:
        mode: ``named`` means the one with this name.
        allowed: the names of those that may be called; empty if all may.
    """

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""
    allowed: tuple[str, ...] = ()
