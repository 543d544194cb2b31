"""What is declared, and that it resolves in the built libraries and behaves as declared."""

from __future__ import annotations

import ctypes
import importlib
import re
from pathlib import Path

import pytest

from llama_py import llama_cpp as low_level
from llama_py._native import chat_h, ggml_h, gguf_h, llama_h, loader, mtmd_h
from tools.declarations import generate

DECLARED_UPSTREAM_BUT_NOT_DEFINED = {"ggml_threadpool_get_n_threads"}


def functions_of(header: str) -> set[str]:
    """The non-deprecated functions of llama.h, found without the generator's parser."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"(\bLLAMA_API\s+)?\bDEPRECATED\(.*?\)\s*;", "", text, flags=re.DOTALL)
    return set(re.findall(r"\bLLAMA_API\b[^;(#]*?\b(\w+)\s*\(", text))


def test_every_function_of_llama_h_is_declared(llama_cpp: Path) -> None:
    header = (llama_cpp / "include/llama.h").read_text(encoding="utf-8")
    expected = functions_of(header)
    assert len(expected) > 200
    assert expected == set(vars(llama_h)["_FUNCTIONS"])


@pytest.mark.parametrize("module", sorted(generate.HEADERS))
def test_every_declared_function_resolves(module: str) -> None:
    declarations = importlib.import_module(f"llama_py._native.{module}")
    missing = set()
    for name in declarations._FUNCTIONS:
        try:
            getattr(declarations, name)
        except loader.SymbolNotFoundError:
            missing.add(name)
    assert missing <= DECLARED_UPSTREAM_BUT_NOT_DEFINED


def test_a_bound_function_is_an_ordinary_global() -> None:
    first = llama_h.llama_time_us
    assert vars(llama_h)["llama_time_us"] is first
    assert type(first).__name__ == "_FuncPtr"


def test_structs_by_value() -> None:
    params = llama_h.llama_context_default_params()
    assert params.n_ctx == 512
    assert params.swa_full is True
    assert not params.cb_eval
    assert llama_h.llama_model_default_params().n_gpu_layers == -1


def test_a_struct_has_no_other_attributes() -> None:
    params = llama_h.llama_context_default_params()
    with pytest.raises(AttributeError):
        params.n_context = 1  # type: ignore[attr-defined]


def test_strings_numbers_and_constants() -> None:
    assert ggml_h.ggml_type_name(low_level.GGML_TYPE_Q8_0) == b"q8_0"
    assert llama_h.LLAMA_DEFAULT_SEED == 0xFFFFFFFF
    assert llama_h.LLAMA_FLASH_ATTN_TYPE_AUTO == -1
    assert gguf_h.GGUF_MAGIC == "GGUF"
    assert mtmd_h.mtmd_default_marker() == b"<__media__>"
    assert chat_h.llama_py_chat_abi_version() == chat_h.LLAMA_PY_CHAT_ABI_VERSION


def test_out_parameters_take_arrays_and_addresses() -> None:
    halves = (ctypes.c_uint16 * 2)(0x3C00, 0x4000)
    floats = (ctypes.c_float * 2)()
    ggml_h.ggml_fp16_to_fp32_row(halves, floats, 2)
    assert list(floats) == [1.0, 2.0]
    ggml_h.ggml_fp16_to_fp32_row(ctypes.addressof(halves) + 2, ctypes.addressof(floats), 1)
    assert floats[0] == 2.0
    ggml_h.ggml_fp16_to_fp32_row(b"\x00\x3c", ctypes.byref(floats), 1)
    assert floats[0] == 1.0


def test_text_must_be_bytes() -> None:
    with pytest.raises(ctypes.ArgumentError):
        gguf_h.gguf_init_from_file("model.gguf", gguf_h.gguf_init_params())  # type: ignore[arg-type]


def test_null_is_false() -> None:
    missing = gguf_h.gguf_init_from_file(b"/nonexistent", gguf_h.gguf_init_params())
    assert isinstance(missing, gguf_h.gguf_context_p)
    assert not missing


def test_a_sampler_written_in_python() -> None:
    seen: list[int] = []
    name = ctypes.create_string_buffer(b"mine")
    interface = llama_h.llama_sampler_i(
        name=llama_h.llama_sampler_i_name(lambda sampler: ctypes.addressof(name)),
        apply=llama_h.llama_sampler_i_apply(lambda sampler, c: seen.append(c.contents.size)),
    )
    sampler = llama_h.llama_sampler_init(interface, None)
    assert llama_h.llama_sampler_name(sampler) == b"mine"
    tokens = (llama_h.llama_token_data * 3)()
    candidates = llama_h.llama_token_data_array(data=tokens, size=3, selected=-1)
    llama_h.llama_sampler_apply(sampler, candidates)
    llama_h.llama_sampler_apply(sampler, ctypes.byref(candidates))
    llama_h.llama_sampler_free(sampler)
    assert seen == [3, 3]


def test_gguf_round_trip(tmp_path: Path) -> None:
    path = bytes(tmp_path / "empty.gguf")
    written = gguf_h.gguf_init_empty()
    gguf_h.gguf_set_val_u32(written, b"answer", 42)
    gguf_h.gguf_set_val_str(written, b"name", b"x")
    assert gguf_h.gguf_write_to_file(written, path, True)
    gguf_h.gguf_free(written)
    read = gguf_h.gguf_init_from_file(path, gguf_h.gguf_init_params(no_alloc=True))
    assert gguf_h.gguf_get_val_u32(read, gguf_h.gguf_find_key(read, b"answer")) == 42
    assert gguf_h.gguf_get_val_str(read, gguf_h.gguf_find_key(read, b"name")) == b"x"
    gguf_h.gguf_free(read)


def test_low_level_names() -> None:
    assert low_level.llama_time_us() > 0
    assert low_level.llama_batch is llama_h.llama_batch
    assert {"llama_decode", "ggml_init", "gguf_free", "mtmd_free"} <= set(dir(low_level))
    assert "c_int" not in dir(low_level)
    with pytest.raises(AttributeError, match="llama_new_context_with_model"):
        low_level.llama_new_context_with_model  # type: ignore[attr-defined] # noqa: B018
