"""Texts, pictures and sounds that go with the next message of ``llama-py chat``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.chat import conversation
from llama_py.errors import ParameterError
from llama_py.regular_files import read_text

if TYPE_CHECKING:
    from llama_py.api.llama import Llama
    from llama_py.media.objects import Audio, Image

__all__ = ["Attachments", "read_file"]


class Attachments:
    """See the module.

    Args:
        llm: what they are shown to; it has to have a projector.
    """

    def __init__(self, llm: Llama) -> None:
        self._llm = llm
        self._parts: list[dict[str, Any]] = []
        self._texts: list[str] = []

    def add(self, sent: Image | Audio, name: str) -> int:
        """Attach a file that was read; how many tokens of a prompt it is.

        Raises:
            MediaError: it cannot be used.
            ParameterError: the model cannot see, or not hear.
        """
        from llama_py.media.objects import Image
        from llama_py.media.reading import MediaReading

        media = self._llm.runtime.port.media
        if media is None:
            raise ParameterError(
                f"{name}: this model does not generate, so it takes no pictures or sounds"
            )
        own = conversation.ImagePart if isinstance(sent, Image) else conversation.AudioPart
        medium = media.read(own(sent.data, sent.media_type), name, MediaReading())
        # In JSON, so that the conversation can be saved.
        if isinstance(sent, Image):
            part = {"type": "image_url", "image_url": {"url": sent.data_url()}}
        else:
            head, _, data = sent.data_url().partition(",")
            form = head.removeprefix("data:audio/").partition(";")[0]
            part = {"type": "input_audio", "input_audio": {"data": data, "format": form}}
        self._parts.append(part)
        return len(medium.tokens)

    def add_text(self, path: str) -> int:
        """Attach a file of text; how many tokens it is.

        Raises:
            ParameterError: it cannot be read, or is not text.
        """
        file = Path(path).expanduser()
        try:
            text = read_text(file).replace("\r\n", "\n")
        except OSError as error:
            raise ParameterError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ParameterError(f"{path} is not text in UTF-8") from None
        shown = f"{file.name}:\n```\n{text.rstrip()}\n```"
        self._texts.append(shown)
        return len(self._llm.tokenize(shown.encode(), add_bos=False))

    def content(self, text: str) -> Any:
        """What a message with this text says, in OpenAI's form."""
        text = "\n\n".join([*self._texts, text])
        if not self._parts:
            return text
        return [*self._parts, {"type": "text", "text": text}]

    def clear(self) -> None:
        """They were sent, or are not to be."""
        self._parts, self._texts = [], []

    def __len__(self) -> int:
        return len(self._parts) + len(self._texts)


def read_file(kind: str, path: str) -> Image | Audio:
    """The file of an ``image`` or an ``audio``.

    Raises:
        MediaError: it cannot be read.
    """
    from llama_py.media.objects import Audio, Image

    file = Path(path).expanduser()
    return Image(file) if kind == "image" else Audio(file)
