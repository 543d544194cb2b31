"""Silence for C code that prints, and classes of which there is one object."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

__all__ = [
    "STDERR_FILENO",
    "STDOUT_FILENO",
    "MetaSingleton",
    "Singleton",
    "errnull_file",
    "outnull_file",
    "suppress_stdout_stderr",
]

STDOUT_FILENO = 1
STDERR_FILENO = 2

outnull_file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
errnull_file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
atexit.register(outnull_file.close)
atexit.register(errnull_file.close)


class suppress_stdout_stderr:
    """A block in which nothing reaches standard output and standard error.

    Args:
        disable: let everything through.
    """

    def __init__(self, disable: bool = True) -> None:
        self.disable = disable

    def __enter__(self) -> suppress_stdout_stderr:
        if not self.disable:
            self._streams = sys.stdout, sys.stderr
            self._kept = os.dup(STDOUT_FILENO), os.dup(STDERR_FILENO)
            os.dup2(outnull_file.fileno(), STDOUT_FILENO)
            os.dup2(errnull_file.fileno(), STDERR_FILENO)
            sys.stdout, sys.stderr = outnull_file, errnull_file
        return self

    def __exit__(self, *_: object) -> None:
        if not self.disable:
            sys.stdout, sys.stderr = self._streams
            for kept, number in zip(self._kept, (STDOUT_FILENO, STDERR_FILENO), strict=True):
                os.dup2(kept, number)
                os.close(kept)


class MetaSingleton(type):
    """The type of classes that always give the same object."""

    _instances: dict[type, Any] = {}  # noqa: RUF012

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls not in cls._instances:
            cls._instances[cls] = super().__call__(*args, **kwargs)
        return cls._instances[cls]


class Singleton(metaclass=MetaSingleton):
    """A class of which there is one object."""

    def __init__(self) -> None:
        super().__init__()
