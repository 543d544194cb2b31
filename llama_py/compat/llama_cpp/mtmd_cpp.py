"""libmtmd's C API (images and sound) as llama-cpp-python has it; see ``llama_cpp``."""

from __future__ import annotations

from ctypes import c_int32, c_size_t, c_void_p
from typing import Any, NewType

from llama_py.compat import binding
from llama_py.compat.c_parameters import C_PARAMETERS

_POINTERS = (
    "mtmd_batch_p",
    "mtmd_bitmap_p",
    "mtmd_context_p",
    "mtmd_helper_gen_audio_p",
    "mtmd_helper_video_p",
    "mtmd_image_tokens_p",
    "mtmd_input_chunk_p",
    "mtmd_input_chunks_p",
)
#: Functions that ``llama_py._native`` does not declare: result, then arguments.
_DEPRECATED: dict[str, tuple[Any, ...]] = {
    "mtmd_encode": (c_int32, c_void_p, c_void_p),
    "mtmd_image_tokens_get_nx": (c_size_t, c_void_p),
    "mtmd_image_tokens_get_ny": (c_size_t, c_void_p),
}
_RENAMED = {
    "mtmd_get_audio_bitrate": "mtmd_get_audio_sample_rate",
    "mtmd_helper_bitmap_init_from_buf_wrapper": "mtmd_helper_bitmap_init_from_buf",
    "mtmd_helper_bitmap_init_from_file_wrapper": "mtmd_helper_bitmap_init_from_file",
}


def mtmd_helper_bitmap_init_from_file(
    ctx: Any, fname: bytes, placeholder: bool, opt: Any = None, /
) -> int | None:
    """The bitmap of a file, None if it cannot be read."""
    options = _fetch("mtmd_helper_init_opt_default")() if opt is None else opt
    made = _fetch("mtmd_helper_bitmap_init_from_file_wrapper")(ctx, fname, placeholder, options)
    return _address(made.bitmap)


def mtmd_helper_bitmap_init_from_buf(
    ctx: Any, buf: Any, length: int, placeholder: bool, opt: Any = None, /
) -> int | None:
    """The bitmap of a file in memory, None if it cannot be read."""
    options = _fetch("mtmd_helper_init_opt_default")() if opt is None else opt
    made = _fetch("mtmd_helper_bitmap_init_from_buf_wrapper")(
        ctx, buf, length, placeholder, options
    )
    return _address(made.bitmap)


def _address(pointer: Any) -> int | None:
    address: int | None = getattr(pointer, "value", pointer)
    return address


def _fetch(name: str) -> Any:
    return globals()[name] if name in globals() else __getattr__(name)


def __getattr__(name: str) -> Any:
    """Make a name of this module, and keep it."""
    value = _made(name)
    globals()[name] = value
    return value


def _made(name: str) -> Any:
    if name == "__all__":
        return [each for each in __dir__() if not each.startswith("_")]
    if name in ("_libmtmd", "_lib"):
        from llama_py._native import loader

        return loader.library("mtmd")
    if name == "ctypes_function":
        from llama_py.compat.llama_cpp._ctypes_extensions import ctypes_function_for_shared_library

        return ctypes_function_for_shared_library(_made("_lib"))
    if name in _RENAMED:
        return binding.bind(name, _RENAMED[name])
    if name in _DEPRECATED:
        return binding.bind_as(name, name, ("mtmd",), _DEPRECATED[name])
    if name.removesuffix("_ctypes") in _POINTERS:
        return c_void_p if name.endswith("_ctypes") else NewType(name, int)
    if name in C_PARAMETERS:
        return binding.bind(name)
    try:
        return binding.native_value(name)
    except AttributeError:
        message = f"module 'llama_cpp.mtmd_cpp' has no attribute {name!r}"
        raise AttributeError(message) from None


def __dir__() -> list[str]:
    prefixes = ("MTMD_", "mtmd_")
    declared = {name for name in binding.declared("mtmd_h") if name.startswith(prefixes)}
    callables = {name for name in C_PARAMETERS if name.startswith("mtmd_")}
    pointers = {f"{name}{end}" for name in _POINTERS for end in ("", "_ctypes")}
    return sorted(declared | callables | pointers | {"ctypes_function"})
