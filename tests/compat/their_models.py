"""A pytest plugin: ``llama_cpp`` is llama_py, and models of the hub are files of this machine.

Loaded into the process that runs llama-cpp-python's own tests; see ``test_their_tests``.
"""

from __future__ import annotations

from typing import Any

import huggingface_hub

import llama_py.compat
import llama_py.models.downloads
from tests.embeddings.models import encoder
from tests.models import tiny_model
from tools.real_models import path_of


def _file(repo_id: str, filename: str, *_: Any, **__: Any) -> str:
    """A local model of the kind that is asked for."""
    name = repo_id.lower()
    if "qwen" in name:
        return str(path_of("qwen05"))
    if "bge" in name:
        return str(encoder())
    if "mamba" in name:
        return str(tiny_model("recurrent"))
    if "falcon" in name:
        return str(tiny_model("hybrid"))
    return str(path_of("smollm2"))


def _download(repo_id: str, filename: str | None = None, *_: Any, **__: Any) -> str:
    return _file(repo_id, filename or "")


llama_py.compat.install()
vars(llama_py.models.downloads)["download"] = _download
vars(huggingface_hub)["hf_hub_download"] = _file
