"""llama.cpp's C API as llama-cpp-python's ``llama_cpp.llama_cpp`` has it.

Functions take and return pointers as integers; NULL is None. The deprecated names are there too. A
function is bound, and the library loaded, when it is first used.
"""

from __future__ import annotations

import ctypes
import pathlib
from ctypes import POINTER, c_bool, c_float, c_int32, c_size_t, c_void_p
from typing import Any, NewType

from llama_py.compat import binding
from llama_py.compat.c_parameters import C_PARAMETERS

byref = ctypes.byref
_lib_base_name = "llama"

#: Deprecated names of functions that only changed their names.
_RENAMED = {
    "llama_load_model_from_file": "llama_model_load_from_file",
    "llama_free_model": "llama_model_free",
    "llama_new_context_with_model": "llama_init_from_model",
    "llama_n_ctx_train": "llama_model_n_ctx_train",
    "llama_n_embd": "llama_model_n_embd",
    "llama_n_layer": "llama_model_n_layer",
    "llama_n_head": "llama_model_n_head",
    "llama_n_vocab": "llama_vocab_n_tokens",
    "llama_apply_adapter_cvec": "llama_set_adapter_cvec",
    "llama_get_state_size": "llama_state_get_size",
    "llama_load_session_file": "llama_state_load_file",
    "llama_save_session_file": "llama_state_save_file",
    "llama_token_get_text": "llama_vocab_get_text",
    "llama_token_get_score": "llama_vocab_get_score",
    "llama_token_get_attr": "llama_vocab_get_attr",
    "llama_token_is_eog": "llama_vocab_is_eog",
    "llama_token_is_control": "llama_vocab_is_control",
    "llama_token_bos": "llama_vocab_bos",
    "llama_token_eos": "llama_vocab_eos",
    "llama_token_eot": "llama_vocab_eot",
    "llama_token_cls": "llama_vocab_bos",
    "llama_token_sep": "llama_vocab_sep",
    "llama_token_nl": "llama_vocab_nl",
    "llama_token_pad": "llama_vocab_pad",
    "llama_add_bos_token": "llama_vocab_get_add_bos",
    "llama_add_eos_token": "llama_vocab_get_add_eos",
    "llama_token_fim_pre": "llama_vocab_fim_pre",
    "llama_token_fim_suf": "llama_vocab_fim_suf",
    "llama_token_fim_mid": "llama_vocab_fim_mid",
    "llama_token_fim_pad": "llama_vocab_fim_pad",
    "llama_token_fim_rep": "llama_vocab_fim_rep",
    "llama_token_fim_sep": "llama_vocab_fim_sep",
    "llama_vocab_cls": "llama_vocab_bos",
}

#: Deprecated functions that ``llama_py._native`` does not declare: result, then arguments.
_DEPRECATED: dict[str, tuple[Any, ...]] = {
    "llama_copy_state_data": (c_size_t, c_void_p, c_void_p),
    "llama_set_state_data": (c_size_t, c_void_p, c_void_p),
    "llama_set_warmup": (None, c_void_p, c_bool),
    "llama_sampler_init_grammar_lazy": (
        c_void_p,
        c_void_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        POINTER(ctypes.c_char_p),
        c_size_t,
        POINTER(c_int32),
        c_size_t,
    ),
}

#: Pointers to structs that llama.h hides: integers, with a name for type checkers.
_POINTERS = (
    "gguf_context_p",
    "llama_batch_ext_p",
    "llama_context_p",
    "llama_kv_cache_p",
    "llama_memory_t",
    "llama_model_p",
    "llama_vocab_p",
)

#: Kinds of pre-tokenizers by their numbers, which llama.h does not have any more.
_PRE_TYPES = (
    "DEFAULT",
    "LLAMA3",
    "DEEPSEEK_LLM",
    "DEEPSEEK_CODER",
    "FALCON",
    "MPT",
    "STARCODER",
    "GPT2",
    "REFACT",
    "COMMAND_R",
    "STABLELM2",
    "QWEN2",
    "OLMO",
    "DBRX",
    "SMAUG",
    "PORO",
    "CHATGLM3",
    "CHATGLM4",
    "VIKING",
    "JAIS",
    "TEKKEN",
    "SMOLLM",
    "CODESHELL",
    "BLOOM",
    "GPT3_FINNISH",
    "EXAONE",
    "CHAMELEON",
    "MINERVA",
    "DEEPSEEK3_LLM",
    "GPT4O",
    "SUPERBPE",
    "TRILLION",
    "BAILINGMOE",
    "LLAMA4",
    "PIXTRAL",
    "SEED_CODER",
)

llama_pos = llama_token = llama_seq_id = c_int32
llama_state_seq_flags = ctypes.c_uint32
llama_token_p = POINTER(c_int32)
llama_adapter_lora_p = c_void_p
llama_adapter_lora_p_ctypes = POINTER(c_void_p)
llama_sampler_context_t = c_void_p


def llama_set_adapter_lora(ctx: Any, adapter: Any, scale: float, /) -> int:
    """Use one LoRA adapter (deprecated: ``llama_set_adapters_lora``)."""
    adapters = (c_void_p * 1)(adapter)
    scales = (c_float * 1)(scale)
    result: int = _fetch("llama_set_adapters_lora")(ctx, adapters, 1, scales)
    return result


def _fetch(name: str) -> Any:
    """A name of this module, which is made when it is first used."""
    return globals()[name] if name in globals() else __getattr__(name)


def __getattr__(name: str) -> Any:
    """Make a name of this module, and keep it."""
    value = _made(name)
    globals()[name] = value
    return value


def _made(name: str) -> Any:
    if name in _SPECIAL:
        return _SPECIAL[name]()
    if name in _RENAMED:
        return binding.bind(name, _RENAMED[name])
    if name in _DEPRECATED:
        return binding.bind_as(name, name, ("llama",), _DEPRECATED[name])
    if name.startswith("llama_") and name.removesuffix("_ctypes") in _POINTERS:
        return c_void_p if name.endswith("_ctypes") else NewType(name, int)
    if name.startswith("LLAMA_VOCAB_PRE_TYPE_"):
        kind = name.removeprefix("LLAMA_VOCAB_PRE_TYPE_")
        if kind in _PRE_TYPES:
            return _PRE_TYPES.index(kind)
    return _from_headers(name)


def _from_headers(name: str) -> Any:
    """A function, struct, constant or type of a callback that a header declares."""
    if name.lower().startswith(("llama_", "ggml_", "gguf_")):
        if name in C_PARAMETERS:
            return binding.bind(name)
        try:
            return binding.native_value(name)
        except AttributeError:
            return binding.bind(name)
    raise AttributeError(f"module 'llama_cpp.llama_cpp' has no attribute {name!r}")


def _library() -> Any:
    from llama_py._native import loader

    return loader.library("llama")


def _library_directory() -> pathlib.Path:
    return pathlib.Path(_library()._name).parent


def _function_decorator() -> Any:
    from llama_py.compat.llama_cpp._ctypes_extensions import ctypes_function_for_shared_library

    return ctypes_function_for_shared_library(_library())


def _override() -> Any:
    """``llama_model_kv_override``, whose union has a name there."""
    native = binding.native_value("llama_model_kv_override")
    return type(native)(
        "llama_model_kv_override", (native,), {"value": property(lambda self: self.u0)}
    )


def _model_params() -> Any:
    """``llama_model_params``, which takes an array of these overrides."""
    native = binding.native_value("llama_model_params")
    pointer = POINTER(binding.native_value("llama_model_kv_override"))

    def get(self: Any) -> Any:
        return native.kv_overrides.__get__(self)

    def put(self: Any, value: Any) -> None:
        self._kept = value
        native.kv_overrides.__set__(self, ctypes.cast(value, pointer))

    return type(native)("llama_model_params", (native,), {"kv_overrides": property(get, put)})


def _model_default_params() -> Any:
    function = binding.bind("llama_model_default_params")
    function.restype = _fetch("llama_model_params")
    return function


_SPECIAL: dict[str, Any] = {
    "_lib": _library,
    "_base_path": _library_directory,
    "LLAMA_MAX_DEVICES": lambda: _fetch("llama_max_devices")(),
    "ctypes_function": _function_decorator,
    "gguf_context_p": lambda: NewType("gguf_context_p", int),
    "gguf_context_p_ctypes": lambda: c_void_p,
    "llama_log_callback": lambda: binding.native_value("ggml_log_callback"),
    "llama_model_default_params": _model_default_params,
    "llama_model_kv_override": _override,
    "llama_model_kv_override_value": lambda: binding.native_value("llama_model_kv_override_u0"),
    "llama_model_params": _model_params,
    "llama_sampler_p": lambda: POINTER(binding.native_value("llama_sampler")),
    "llama_sampler_p_ctypes": lambda: POINTER(binding.native_value("llama_sampler")),
    "llama_token_data_p": lambda: POINTER(binding.native_value("llama_token_data")),
    "llama_token_data_array_p": lambda: POINTER(binding.native_value("llama_token_data_array")),
    "llama_logit_bias_p": lambda: POINTER(binding.native_value("llama_logit_bias")),
}


def __dir__() -> list[str]:
    callbacks = ("ggml_backend_sched_eval_callback", "ggml_abort_callback")
    prefixes = ("LLAMA_", "GGML_", "llama_", *callbacks)
    declared = {name for name in binding.declared("llama_h", "ggml_h") if name.startswith(prefixes)}
    callables = {name for name in C_PARAMETERS if not name.startswith("mtmd_")}
    pointers = {f"{name}{end}" for name in _POINTERS for end in ("", "_ctypes")}
    kinds = {f"LLAMA_VOCAB_PRE_TYPE_{kind}" for kind in _PRE_TYPES}
    own = {name for name in globals() if name.startswith("llama_")}
    return sorted(declared | callables | pointers | kinds | own | {*_SPECIAL})


_SPECIAL["__all__"] = lambda: (
    [name for name in __dir__() if not name.startswith("_")]
    + [
        "byref",
        "ctypes",
    ]
)
