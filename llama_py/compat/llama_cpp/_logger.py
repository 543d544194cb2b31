"""The logger of llama-cpp-python.

llama.cpp's log goes to the logger ``llama_py``; what is set here is passed on to it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from llama_py.compat import binding

__all__ = ["GGML_LOG_LEVEL_TO_LOGGING_LEVEL", "llama_log_callback", "logger", "set_verbose"]  # noqa: F822 - made when used

GGML_LOG_LEVEL_TO_LOGGING_LEVEL = {
    0: logging.CRITICAL,
    1: logging.INFO,
    2: logging.WARNING,
    3: logging.ERROR,
    4: logging.DEBUG,
    5: logging.DEBUG,
}

logger = logging.getLogger("llama-cpp-python")


def _print(level: int, text: bytes, user_data: Any) -> None:
    """Print what llama.cpp says, if the logger is interested in its level."""
    if logger.level <= GGML_LOG_LEVEL_TO_LOGGING_LEVEL.get(level, logging.DEBUG):
        print(text.decode("utf-8", "replace"), end="", flush=True, file=sys.stderr)


def __getattr__(name: str) -> Any:
    """The callback for ``llama_log_set``, which needs llama.cpp's declarations."""
    if name != "llama_log_callback":
        raise AttributeError(f"module 'llama_cpp._logger' has no attribute {name!r}")
    value = binding.native_value("ggml_log_callback")(_print)
    value.__signature__ = binding.keywords("level", "text", "user_data")
    globals()[name] = value
    return value


def set_verbose(verbose: bool) -> None:
    """Whether llama.cpp's log is wanted: everything, or errors only."""
    logger.setLevel(logging.DEBUG if verbose else logging.ERROR)
