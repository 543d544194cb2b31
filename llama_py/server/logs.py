"""The server's log: JSON, one object on each line; on a terminal, plain lines.

A request has one line, without its prompt and without its key. Text that comes from clients is
escaped, so that nobody can write lines of his own, or colours into a terminal.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import datetime, timezone
from typing import Any, TextIO

from llama_py.server.request_record import RequestRecord

__all__ = ["JsonFormatter", "TextFormatter", "log_request", "log_to"]

_requests = logging.getLogger("llama_py.server.requests")

#: Asked again and again by machines, or by the dozen by a browser.
_SILENT = ("/health", "/v1/health", "/livez", "/readyz", "/api/hello", "/metrics", "/page/")
#: Of a path that is not one of ours.
_LONGEST = 200


def log_request(record: RequestRecord) -> None:
    """Write the line of a request."""
    # That the server is not ready is an answer as good as another one.
    silent = record.path.startswith(_SILENT) and not record.error
    if silent or not _requests.isEnabledFor(logging.INFO):
        return
    fields = {
        "id": record.id,
        "client": record.client,
        "key": record.caller.name,
        "method": record.method[:20],
        "route": record.route or record.path[:_LONGEST],
        "model": record.model,
        "status": record.status,
        "error": record.error,
        "finish": record.finish,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "generated_tokens": record.generated_tokens,
        "queue_ms": _milliseconds(record.queue_seconds),
        "ttft_ms": _milliseconds(record.first_token_seconds),
        "total_ms": _milliseconds(record.seconds),
    }
    fields = {name: value for name, value in fields.items() if value not in ("", None)}
    _requests.info(
        "%s %s %s", record.method[:20], fields["route"], record.status, extra={"fields": fields}
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)


class JsonFormatter(logging.Formatter):
    """One JSON object for each record; everything but ASCII is escaped."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # JSON leaves DEL as it is.
        return json.dumps(line, default=str).replace("\x7f", "\\u007f")


class TextFormatter(logging.Formatter):
    """A line for people; what is not printable is escaped."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        words = [time.strftime("%H:%M:%S", time.localtime(record.created))]
        if record.levelno != logging.INFO:
            words.append(record.levelname.lower())
        words.append(_escaped(record.getMessage()))
        words += [f"{name}={_escaped(str(fields[name]))}" for name in fields if name not in _SAID]
        line = "  ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


#: Fields of a request that its message has, or that nobody reads on a terminal.
_SAID = frozenset({"id", "method", "route", "status"})


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1].replace("\x7f", "\\u007f")


def log_to(stream: TextIO | None = None, level: str = "info") -> logging.Handler:
    """Write what is logged to a stream, standard error by default.

    Returns:
        the handler, to be removed from the root logger by who does not want it any more.
    """
    stream = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if stream.isatty() else JsonFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    # llama.cpp remarks on much that is as it should be.
    logging.getLogger("llama_py").setLevel("DEBUG" if level == "debug" else "WARNING")
    logging.getLogger("llama_py.server").setLevel(level.upper())
    return handler
