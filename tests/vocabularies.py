"""Vocabularies of real models, which the pinned llama.cpp ships for its own tests."""

from __future__ import annotations

from pathlib import Path

from tests.chat.families import template_folder

__all__ = ["vocabulary_path"]


def vocabulary_path(name: str) -> Path:
    """The GGUF file (no weights) of ``gpt-2``, ``llama-spm``, ``phi-3``, ``qwen2``, ..."""
    return template_folder().parent / f"ggml-vocab-{name}.gguf"
