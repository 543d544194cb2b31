"""The process of ``quantize``: reads a request, writes llama.cpp's lines.

It ends when its standard input does: nothing is left running by a parent that was killed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from llama_py.core import logs
from llama_py.core.quantize import QuantizeOptions, quantize_model
from llama_py.errors import LlamaError
from llama_py.gguf.writer import new_file
from llama_py.tools.imatrix import Matrix, read_matrix

__all__ = ["main"]


class _PrintedLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sys.stdout.write(record.getMessage() + "\n")
        sys.stdout.flush()


def main() -> int:
    """Do what is asked for on standard input; the exit status."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logs.install()
    logs.LOGGER.addHandler(_PrintedLines())
    logs.LOGGER.setLevel(logging.DEBUG)
    try:
        _quantize(request)
    except (LlamaError, OSError) as error:
        sys.stdout.write(f"error: {' '.join(str(error).split())}\n")
        return 1
    return 0


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _quantize(request: dict[str, Any]) -> None:
    source, target, imatrix = (request.pop(name) for name in ("source", "target", "imatrix"))
    matrix = read_matrix(Path(imatrix)) if imatrix else None
    options = QuantizeOptions(
        **request,
        dry_run=not target,
        matrix=matrix.entries if matrix else {},
        metadata=_about(matrix, imatrix) if matrix else {},
    )
    if options.dry_run:
        quantize_model(source, "", options)
        return
    with new_file(Path(target)) as (_, inner):
        quantize_model(source, inner, options)


def _about(matrix: Matrix, path: str) -> dict[str, bool | int | float | str]:
    """The keys about the matrix that ``llama-quantize`` writes."""
    found: dict[str, bool | int | float | str] = {"quantize.imatrix.file": path}
    if matrix.datasets:
        found["quantize.imatrix.dataset"] = matrix.datasets[0]
    found["quantize.imatrix.entries_count"] = len(matrix.entries)
    if matrix.n_chunks > 0:
        found["quantize.imatrix.chunks_count"] = matrix.n_chunks
    return found


if __name__ == "__main__":
    sys.exit(main())
