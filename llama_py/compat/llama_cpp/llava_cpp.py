"""The C API of llava, which llama.cpp does not build any more: its functions say so."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int, c_void_p
from typing import Any, NewType

from llama_py.compat.llama_cpp.llama_cpp import ctypes_function

__all__ = [
    "clip_ctx_p",
    "clip_ctx_p_ctypes",
    "clip_free",
    "clip_model_load",
    "ctypes_function",
    "llava_eval_image_embed",
    "llava_image_embed",
    "llava_image_embed_free",
    "llava_image_embed_make_with_bytes",
    "llava_image_embed_make_with_filename",
    "llava_validate_embed_size",
]

clip_ctx_p = NewType("clip_ctx_p", int)
clip_ctx_p_ctypes = c_void_p


class llava_image_embed(Structure):
    """The embedding of a picture."""

    _fields_ = [("embed", POINTER(c_float)), ("n_image_pos", c_int)]


def _gone(name: str) -> NotImplementedError:
    return NotImplementedError(f"{name}: llama.cpp has libmtmd instead of llava (mtmd_cpp)")


def llava_validate_embed_size(ctx_llama: Any, ctx_clip: Any, /) -> bool:
    """Gone."""
    raise _gone("llava_validate_embed_size")


def llava_image_embed_make_with_bytes(
    ctx_clip: Any, n_threads: int, image_bytes: Any, image_bytes_length: int, /
) -> Any:
    """Gone."""
    raise _gone("llava_image_embed_make_with_bytes")


def llava_image_embed_make_with_filename(ctx_clip: Any, n_threads: int, image_path: Any, /) -> Any:
    """Gone."""
    raise _gone("llava_image_embed_make_with_filename")


def llava_image_embed_free(embed: Any, /) -> None:
    """Gone."""
    raise _gone("llava_image_embed_free")


def llava_eval_image_embed(ctx_llama: Any, embed: Any, n_batch: int, n_past: Any, /) -> bool:
    """Gone."""
    raise _gone("llava_eval_image_embed")


def clip_model_load(fname: Any, verbosity: int, /) -> Any:
    """Gone."""
    raise _gone("clip_model_load")


def clip_free(ctx: Any, /) -> None:
    """Gone."""
    raise _gone("clip_free")
