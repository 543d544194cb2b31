"""A stored state as one file that needs no store: what ``payload`` writes, and then its segments.

Each segment is padded to 64 bytes. Like everything that is stored, it is checked when it is read,
and nothing in it is ever run as code.
"""

from __future__ import annotations

import dataclasses
import os
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from llama_py.errors import ParameterError, StateError
from llama_py.states.payload import (
    Payload,
    read_segment_from,
    read_state_from,
    write_segment_to,
)
from llama_py.states.state import StoredState

__all__ = ["read_whole", "write_whole"]

#: The key of a state that has a file to itself.
_KEY = "whole"
_ALIGN = 64


def write_whole(file: BinaryIO, state: StoredState) -> None:
    """Write a state to an open file. The bytes of its segments must be in memory.

    Raises:
        OSError: it cannot be written.
    """
    named = tuple(dataclasses.replace(each, key=_KEY) for each in state.segments)
    Payload(_KEY, dataclasses.replace(state, segments=named)).write_to(file)
    for segment in state.segments:
        if segment.state is None:
            raise StateError("the first cells of this state are in a store, and not in memory")
        write_segment_to(file, _KEY, segment.state)
        file.write(bytes(-segment.nbytes % _ALIGN))


def read_whole(file: FileIO, name: Path) -> StoredState:
    """Read a state that has a file to itself; each array has its own memory.

    Args:
        name: the file's name, for messages.

    Raises:
        StateError: the file is not what was written.
        OSError: it cannot be read.
        MemoryError: there is no room for it.
    """
    try:
        state = read_state_from(file, name, _KEY)
        segments = tuple(
            dataclasses.replace(each, state=read_segment_from(file, name, _KEY, each.nbytes))
            for each in state.segments
        )
        if file.tell() != os.fstat(file.fileno()).st_size:
            raise StateError(f"{name} goes on behind its end")
        return dataclasses.replace(state, segments=segments)
    except (ValueError, KeyError, TypeError, AssertionError, ParameterError) as error:
        raise StateError(f"{name} is not a saved state: {error!r}") from None
