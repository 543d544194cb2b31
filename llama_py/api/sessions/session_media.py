"""Pictures and sounds of a session: as parts of its messages, and as files beside a saved one.

In memory a message has them as data URLs, which any JSON can hold. A saved session has each of them
once, as a file named by its digest, in a folder beside the JSON.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from llama_py.errors import MediaError, StateError
from llama_py.media.files import look_at
from llama_py.media.limits import MediaLimits
from llama_py.media.objects import Audio, Image
from llama_py.media.sources import read_url
from llama_py.regular_files import open_regular

__all__ = ["UserContent", "as_content", "media_folder", "with_files", "without_files"]

#: What a user says: a text, or texts, pictures and sounds in order.
UserContent: TypeAlias = str | Sequence[str | Image | Audio | Mapping[str, Any]]

_SCHEME = "media:"
_NAME = re.compile(r"[0-9a-f]{64}\.[a-z0-9]{1,8}")
_Messages = Sequence[Mapping[str, Any]]


def as_content(content: UserContent) -> Any:
    """A message as JSON."""
    if isinstance(content, str) or not isinstance(content, Sequence):
        return content
    return [_part(part) for part in content]


def _part(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Image):
        return {"type": "image_url", "image_url": {"url": part.data_url()}}
    if isinstance(part, Audio):
        data = base64.b64encode(part.data).decode()
        format = part.media_type.partition("/")[2]
        return {"type": "input_audio", "input_audio": {"data": data, "format": format}}
    return part


def media_folder(path: Path) -> Path:
    """Where the pictures and sounds of a saved session are."""
    return path.with_name(f"{path.name}.media")


def without_files(messages: _Messages, folder: Path) -> tuple[list[Any], set[str]]:
    """Messages that name their pictures and sounds, which are written into ``folder``.

    Returns:
        The messages, and the names of the files.

    Raises:
        OSError: one cannot be written.
    """
    names: set[str] = set()

    def keep(data: bytes) -> str:
        kind = look_at(data, "a picture or sound").format
        name = f"{hashlib.sha256(data).hexdigest()}.{kind}"
        names.add(name)
        path = folder / name
        if not path.exists():
            folder.mkdir(exist_ok=True)
            part = path.with_name(f".{name}.part")
            part.write_bytes(data)
            part.replace(path)
        return _SCHEME + name

    return [_changed(message, partial(_without_file, keep=keep)) for message in messages], names


def with_files(messages: Any, folder: Path) -> Any:
    """The same messages with what the files of ``folder`` hold.

    Raises:
        StateError: one is not there, or is not what it was.
    """
    if not isinstance(messages, list):
        return messages
    return [_changed(message, partial(_with_file, folder=folder)) for message in messages]


def _changed(message: Any, change: Callable[[Any], Any]) -> Any:
    """The message with every part of its content changed."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    return {**message, "content": [change(part) for part in content]}


def _without_file(part: Any, keep: Callable[[bytes], str]) -> Any:
    """A part that names its file, if it has one in itself."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    try:
        if kind == "image_url":
            given = part.get("image_url")
            holder = given if isinstance(given, Mapping) else {"url": given}
            url = holder.get("url")
            if isinstance(url, str) and url.strip()[:5].lower() == "data:":
                data = read_url(url, "a picture", MediaLimits())
                return {**part, "image_url": {**holder, "url": keep(data)}}
        if kind == "input_audio" and isinstance(part.get("input_audio"), Mapping):
            holder = part["input_audio"]
            if isinstance(encoded := holder.get("data"), str):
                data = read_url(f"data:;base64,{encoded}", "a sound", MediaLimits())
                return {**part, "input_audio": {**holder, "data": keep(data)}}
    except MediaError:  # what it is was never asked: it stays as it is
        pass
    return part


def _with_file(part: Any, folder: Path) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("image_url", "input_audio") or not isinstance(part.get(kind), dict):
        return part
    holder, field = part[kind], "url" if kind == "image_url" else "data"
    name = holder.get(field)
    if not isinstance(name, str) or not name.startswith(_SCHEME):
        return part
    own = name.removeprefix(_SCHEME)
    if not _NAME.fullmatch(own):
        raise StateError(f"the saved conversation names a picture {own!r}, which is not a digest")
    path = folder / own
    try:
        with open_regular(path) as file:
            data = file.readall()
    except OSError as error:
        raise StateError(f"the picture or sound {path} cannot be read: {error}") from None
    if hashlib.sha256(data).hexdigest() != own.partition(".")[0]:
        raise StateError(f"the picture or sound {path} is not what it was")
    try:
        media_type = look_at(data, str(path)).media_type
    except MediaError as error:  # it has the digest that the JSON names, and was never saved
        raise StateError(f"the picture or sound {error}") from None
    encoded = base64.b64encode(data).decode()
    value = f"data:{media_type};base64,{encoded}" if field == "url" else encoded
    return {**part, kind: {**holder, field: value}}
