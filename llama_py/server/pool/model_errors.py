"""Why a request does not get its model, in words for the client."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from llama_py.dialects.failures import Kind, RequestError
from llama_py.errors import LlamaError, ModelNotFoundError, shown
from llama_py.server.pool.served_model import ServedModel

__all__ = ["failed", "keeps_dying", "not_found", "reason_of", "stopping", "too_long", "too_many"]

#: When to come again after waiting in vain, in seconds.
_RETRY_AFTER = 5.0


def reason_of(error: Exception, model: ServedModel) -> str:
    """Why a model could not be loaded, for a client: without paths of this machine."""
    files = model.settings.files
    if isinstance(error, ModelNotFoundError):  # its words list what else is there
        others = [Path(path).name for _, path in files[1:] if path in str(error)]
        missing = others[0] if others else None
        return "its file is missing" if missing is None else f"the file {missing} is missing"
    if not isinstance(error, LlamaError):
        return "the server's log says why"
    # Files have their names in place of where they are, that of the model itself the model's name.
    message = str(error)
    paths = {path: model.id if name == "path" else Path(path).name for name, path in files}
    known = {
        text: name
        for path, name in paths.items()
        for text in (path, str(Path(path)), str(Path(path).resolve()))
    }
    # There may be others beside them: the parts of a model, or what a link leads to.
    for folder in {each.parent for path in paths for each in (Path(path), Path(path).resolve())}:
        if folder.name not in ("", ".", ".."):
            known[f"{folder}{os.sep}"] = ""
    for text in sorted(known, key=len, reverse=True):  # one may be the end of another one
        message = message.replace(text, known[text])
    return message


def not_found(name: str, offered: Iterable[ServedModel]) -> RequestError:
    """Nothing has this name."""
    known = ", ".join(model.id for model in offered)
    message = f"the model {shown(name)} does not exist; this server has {known}"
    return RequestError(Kind.MODEL_NOT_FOUND, message, "model")


def failed(model: ServedModel, error: Exception, pause: float) -> RequestError:
    """It cannot be loaded, and is left alone for this many seconds."""
    reason = reason_of(error, model)
    message = f"the model {model.id} cannot be loaded: {reason}"
    return RequestError(Kind.UNAVAILABLE, message, "model", retry_after=pause)


def too_long(model: ServedModel, seconds: float | None) -> RequestError:
    """There was no room for it in time."""
    return RequestError(
        Kind.UNAVAILABLE,
        f"the model {model.id} did not become available within {seconds:g} seconds: others "
        "are in use; try again later",
        "model",
        retry_after=_RETRY_AFTER,
    )


def too_many(count: int) -> RequestError:
    """The queue is full."""
    return RequestError(
        Kind.QUEUE_FULL,
        f"{count} requests are waiting for models already; try again later",
        retry_after=_RETRY_AFTER,
    )


def stopping() -> RequestError:
    """No model is given to anybody any more."""
    message = "the server is being stopped; try again later"
    return RequestError(Kind.UNAVAILABLE, message, retry_after=_RETRY_AFTER)


def keeps_dying(model: ServedModel, pause: float) -> RequestError:
    """Its own process died again and again, and is left alone for this many seconds."""
    message = (
        f"the process of the model {model.id} died several times in a row; it is started again in "
        f"{pause:.0f} s"
    )
    return RequestError(Kind.UNAVAILABLE, message, code="engine_dead", retry_after=pause)
