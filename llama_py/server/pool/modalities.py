"""``senses_of``: whether a model sees and hears, from its files: nothing is loaded for that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llama_py.api.media import find_projector
from llama_py.api.rendering import projector_senses
from llama_py.errors import LlamaError
from llama_py.gguf.reader import read_header

if TYPE_CHECKING:
    from llama_py.server.config.settings import ModelSettings

__all__ = ["senses_of"]


def senses_of(settings: ModelSettings) -> tuple[bool, bool]:
    """Whether the model will see, and hear, when it is loaded."""
    model, path = Path(settings.path), settings.options.get("mmproj", "auto")
    try:
        if path == "auto":
            path = None
            if any(model.parent.glob("*mmproj*.gguf")):
                scalars = read_header(model).scalars
                width = scalars.get(f"{scalars.get('general.architecture')}.embedding_length")
                path = find_projector(model, width) if isinstance(width, int) else None
        return (False, False) if path is None else projector_senses(Path(path))
    except (LlamaError, OSError, ValueError):  # loading says what is wrong
        return False, False
