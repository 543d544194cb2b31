"""A saved conversation: a JSON file, and beside it, if wanted, the state that was in memory.

The JSON holds everything that a person would miss. The state only saves work: it is checked against
its digests and the settings of the model, and is left unused when anything does not fit. It is read
with ``states.payload``, so that no bytes of a file are ever run as code.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_py.api.sessions.session_media import media_folder, with_files, without_files
from llama_py.errors import (
    LlamaError,
    ParameterError,
    ParameterTypeError,
    StateError,
    StorageError,
    StorageNotFoundError,
    shown,
)
from llama_py.options.checks import whole_text
from llama_py.regular_files import open_regular, read_text
from llama_py.states.payload import Payload, read_state
from llama_py.states.state import StoredState
from llama_py.states.whole import read_whole, write_whole

if TYPE_CHECKING:
    from llama_py.api.kept.model_cache import ModelCache

__all__ = ["load", "save"]

_log = logging.getLogger("llama_py")

_FORMAT = "llama_py.chat_session"
_VERSION = 1


# ---- writing ---------------------------------------------------------------------------------


def save(
    cache: ModelCache | None,
    session: Mapping[str, Any],
    path: str | os.PathLike[str],
    options: Mapping[str, Any],
) -> None:
    """Write a session; an older file is replaced only by a complete new one.

    Args:
        cache: where its state is; None writes none.
        options: the session's options for ``create_chat_completion``.
    """
    path = _as_path(path)
    state: StoredState | None = None
    if cache is not None:
        messages = [*session["messages"], *session["tool_results"]]
        options = {"tools": session["tools"], **options}
        try:  # the state only saves work: whatever is in its way must not cost the conversation
            state = cache.state_of(messages, session["session_id"], options)
        except (LlamaError, MemoryError) as error:  # a template may refuse an unfinished call
            _log.warning("the state of the conversation is not saved: %s", error)
    try:
        _write(path, session, state)
    except OSError as error:
        raise _storage_error("written", path, error) from error


def _as_path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise ParameterTypeError(f"path must be the path of a file, not {shown(path)}")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ParameterError(f"path={shown(str(path))} cannot be the name of a file") from None
    return Path(path)


def _storage_error(what: str, path: Path, error: OSError) -> StorageError:
    """The same with the path that the caller gave, and not that of a temporary file."""
    kind = StorageNotFoundError if isinstance(error, FileNotFoundError) else StorageError
    reason = error.strerror or str(error)
    return kind(f"{path} cannot be {what}: {reason}", error.errno, str(path))


def _write(path: Path, session: Mapping[str, Any], state: StoredState | None) -> None:
    """Both files are complete before either takes the place of an older one."""
    if path.exists() and not path.is_file():  # a folder, or a device that would be replaced
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    new, new_state = _beside(path), _beside(_state_path(path))
    try:
        described = _write_state(new_state, state) if state is not None else None
        folder = media_folder(path)
        messages, names = without_files(session["messages"], folder)
        results, more = without_files(session["tool_results"], folder)
        content = {"format": _FORMAT, "version": _VERSION, **session, "state": described}
        content |= {"messages": messages, "tool_results": results}
        text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
        new.write_text(whole_text(text, "the conversation"), encoding="utf-8")
        if described is not None:
            new_state.replace(_state_path(path))
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
        new_state.unlink(missing_ok=True)
    if described is None:
        _state_path(path).unlink(missing_ok=True)
    if folder.is_dir():  # it may have pictures that the conversation does not have any more
        names |= more
        for each in folder.iterdir():
            if each.name not in names:
                each.unlink(missing_ok=True)
        if not names:
            folder.rmdir()


def _state_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.state")


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.new")


def _write_state(path: Path, state: StoredState) -> dict[str, Any]:
    if state.segments:  # it was copied in pieces
        with path.open("xb") as file:
            write_whole(file, state)
            return {"whole": file.tell()}
    key = uuid.uuid4().hex
    payload = Payload(key, state)
    payload.write(path)
    return {"key": key, "head_bytes": payload.head_bytes, "file_bytes": payload.file_bytes}


# ---- reading ---------------------------------------------------------------------------------


def load(cache: ModelCache, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a session, and bring its state into memory if there is one that fits."""
    path = _as_path(path)
    try:
        saved = json.loads(read_text(path))
    except OSError as error:
        raise _storage_error("read", path, error) from error
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} is not a saved conversation: it is not JSON ({error})") from None
    if not isinstance(saved, dict) or saved.get("format") != _FORMAT:
        raise StateError(f"{path} is not a saved conversation")
    if saved.get("version") != _VERSION:
        raise StateError(
            f"{path} has version {saved.get('version')!r} of the format, and this llama_py reads "
            f"version {_VERSION}"
        )
    saved = _checked(path, saved)
    if saved["state"] is not None:
        try:
            _bring_in(cache, path, saved)
        except (LlamaError, OSError, MemoryError, ValueError, KeyError, AssertionError) as error:
            _log.warning("%s: the saved state is not used: %s", path, error)
    return saved


def _checked(path: Path, saved: dict[str, Any]) -> dict[str, Any]:
    from llama_py.chat.messages import check_names
    from llama_py.dialects.openai.messages import read_messages, read_tools

    out = {"state": None, "tools": None, "tool_results": [], **saved}
    for name in ("messages", "tool_results"):
        out[name] = with_files(out.get(name), media_folder(path))
    for name in ("messages", "tool_results"):
        if not isinstance(out.get(name), list):
            raise StateError(f"{path} is damaged: {name} is not a list")
    try:
        if out["messages"] or out["tool_results"]:
            read_messages([*out["messages"], *out["tool_results"]])
        check_names(read_tools(out["tools"]))
    except (ParameterError, KeyError, TypeError) as error:
        raise StateError(f"{path} is damaged: {error}") from None
    if not isinstance(out.get("session_id"), str):
        raise StateError(f"{path} is damaged: session_id is missing")
    return out


def _bring_in(cache: ModelCache, path: Path, saved: Mapping[str, Any]) -> None:
    state, name = saved["state"], _state_path(path)
    if isinstance(state, dict) and "whole" in state:
        with open_regular(name) as file:
            stored = read_whole(file, name)
    else:  # as ``_write_state`` noted it
        described = state if isinstance(state, dict) else {}
        key, head, size = (described.get(each) for each in ("key", "head_bytes", "file_bytes"))
        if (
            not isinstance(key, str)
            or type(head) is not int
            or type(size) is not int
            or not 0 < head < size
        ):
            raise StateError("its description is damaged")
        stored = read_state(name, key, head, size)
    cache.bring_in(stored, saved["session_id"])
