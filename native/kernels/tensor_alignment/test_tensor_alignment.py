"""Where tensors lie in RAM: at cache lines (``tensor_alignment.h``)."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from llama_py import Llama
from llama_py._native import ggml_h as G
from llama_py._native import llama_h as C
from llama_py._native.loader import build_info
from tests.models import tiny_model

#: Bytes of a cache line, and of the widest loads of a processor.
LINE = 64


def buffer_types() -> Iterator[G.ggml_backend_buffer_type_t]:
    """The CPU's: of cells and graphs, and of weights that its kernels lay out anew."""
    yield G.ggml_backend_cpu_buffer_type()
    device = G.ggml_backend_dev_by_type(G.GGML_BACKEND_DEVICE_TYPE_CPU)
    registry = G.ggml_backend_dev_backend_reg(device)
    address = G.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return
    array = G.ggml_backend_dev_get_extra_bufts_t(address)(device)
    size = ctypes.sizeof(ctypes.c_void_p)
    while array and (pointer := ctypes.c_void_p.from_address(array).value):
        yield G.ggml_backend_buffer_type_t(pointer)
        array += size


def test_tensors_lie_at_cache_lines() -> None:
    if build_info()["rules"]["LLAMA_PY_TENSOR_ALIGNMENT"] != "applied":
        pytest.skip("this build leaves the alignment as it is")
    found = [G.ggml_backend_buft_get_alignment(each) for each in buffer_types()]
    assert found
    assert set(found) == {LINE}


def test_without_the_rule_they_do_not(llama_cpp: Path) -> None:
    """When this fails, ggml's own alignment is another one, and the rule may have done its work."""
    text = (llama_cpp / "ggml" / "src" / "ggml-impl.h").read_text(encoding="utf-8")
    found = re.findall(r"^#define TENSOR_ALIGNMENT (\d+)$", text, re.MULTILINE)
    assert [int(each) for each in found] == [LINE // 2]


def test_mapped_weights_stay_where_they_are() -> None:
    """A file promises multiples of 32 only; weights that are read in place are used as they lie."""
    path = tiny_model("full", n_embd=72, n_head=2, n_head_kv=2)
    reader = gguf.GGUFReader(path)
    assert any(tensor.data_offset % LINE for tensor in reader.tensors), "the file proves nothing"
    rows = []
    for use_mmap in (True, False):
        with Llama(path, n_ctx=64, use_mmap=use_mmap, n_threads=1) as llm:
            llm.eval(list(range(1, 33)))
            rows.append(np.array(llm.last_logits))
    assert np.abs(rows[0]).max() > 0.1
    np.testing.assert_allclose(rows[0], rows[1], rtol=0, atol=1e-5)


def test_a_file_that_is_open_is_mapped_where_its_tensors_lie(llama_cpp: Path) -> None:
    """llama.cpp asks once for the alignment of the CPU's buffers, and means that of files."""
    loader = llama_cpp / "src" / "llama-model-loader.cpp"
    assert loader.read_text(encoding="utf-8").count("ggml_backend_buft_get_alignment(") == 1
    path = tiny_model("full", n_layer=3)
    assert gguf.GGUFReader(path).data_offset % LINE, "the file proves nothing"
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(bytes(path), b"rb")
    try:
        model = C.llama_model_load_from_file_ptr(file, C.llama_model_default_params())
        assert model, "it was refused"
        C.llama_model_free(model)
    finally:
        libc.fclose(ctypes.c_void_p(file))


def test_a_buffer_of_several_tensors_has_room_for_all() -> None:
    """What is said to be needed is what is taken, and each tensor begins at a cache line."""
    memory = G.ggml_init_params(mem_size=1 << 20, mem_buffer=None, no_alloc=True)
    context = G.ggml_init(memory)
    try:
        sizes = [1, 8, 9, 17, 500, 31]
        tensors = [G.ggml_new_tensor_1d(context, G.GGML_TYPE_F32, size) for size in sizes]
        kind = G.ggml_backend_cpu_buffer_type()
        needed = G.ggml_backend_alloc_ctx_tensors_from_buft_size(context, kind)
        buffer = G.ggml_backend_alloc_ctx_tensors_from_buft(context, kind)
        assert buffer
        step = G.ggml_backend_buft_get_alignment(kind)
        assert needed == sum(-(-4 * size // step) * step for size in sizes)
        assert G.ggml_backend_buffer_get_size(buffer) >= needed
        start = G.ggml_backend_buffer_get_base(buffer)
        assert start
        places = [G.ggml_get_data(each) for each in tensors]
        assert all(place and place % step == 0 for place in places)
        assert places[-1]
        assert places[-1] + 4 * sizes[-1] <= start + needed
        G.ggml_backend_buffer_free(buffer)
    finally:
        G.ggml_free(context)
