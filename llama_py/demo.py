"""The model that comes with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from llama_py.errors import ModelNotFoundError

__all__ = ["demo_model_path"]

_NAME = "demo-chat-q8_0.gguf"


def demo_model_path() -> str:
    """Path of the bundled model: a demonstration of a few million parameters, not an assistant.

    Raises:
        ModelNotFoundError: this installation came without it.
    """
    path = Path(str(files("llama_py") / "models" / _NAME))
    if not path.is_file():
        raise ModelNotFoundError(f"the bundled model is missing at {path}; install llama-py again")
    return str(path)
