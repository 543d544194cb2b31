"""Of a mapped file, the pages of weights that were copied are given back, and no others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from llama_py._native.loader import build_info
from llama_py.gguf.reader import read_header
from tests.models import tiny_model
from tests.native.builds import configured

#: Loads a model, and says how many bytes of its file are in memory.
_LOAD = """
import os, re
from llama_py import Llama

path = os.environ["FILE"]
with Llama(path, n_ctx=64, repack=os.environ["REPACK"] == "yes"):
    text = open("/proc/self/smaps").read()
    areas = re.findall(rf"{re.escape(path)}\\n(?:.*\\n)*?Rss: +([0-9]+) kB", text)
    print(sum(map(int, areas)) << 10)
"""


def partly_copied(path: Path) -> Path:
    """A model with matrices that kernels lay out anew, and others in F32, which none does."""
    reader = gguf.GGUFReader(tiny_model("full", n_embd=512, n_ff=256))
    out = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            inner = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            out.add_key_value(name, field.contents(), field.types[0], inner)
    kind = gguf.GGMLQuantizationType.Q4_0
    for tensor in reader.tensors:
        if len(tensor.shape) == 1:
            out.add_tensor(tensor.name, tensor.data)
        elif "ffn" in tensor.name:
            out.add_tensor(tensor.name, tensor.data.astype(np.float32))
        else:
            out.add_tensor(tensor.name, gguf.quantize(tensor.data, kind), raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux")
def test_what_is_used_in_place_stays(
    run_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    if build_info()["rules"].get("LLAMA_PY_COPIED_PAGES") != "applied":
        pytest.skip("this build keeps the pages")
    path = partly_copied(tmp_path / "model.gguf")
    tensors = read_header(path).tensors
    whole = sum(each.n_bytes for each in tensors)
    in_place = sum(each.n_bytes for each in tensors if "ffn" in each.name)

    def held(repack: str) -> int:
        done = run_python(_LOAD, FILE=str(path), REPACK=repack)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert held("no") >= 0.9 * whole
    resident = held("yes")
    if resident > 0.9 * whole:
        pytest.skip("this build copies no weights")
    assert in_place <= resident <= in_place + 0.5 * (whole - in_place)


@pytest.mark.slow
def test_the_rule_can_be_turned_off(gcc: str, tmp_path: Path) -> None:
    """The copy is compiled as the source was, with what another rule includes first."""
    sources = ("/llama-model-loader.cpp",)
    (command,), rules = configured(tmp_path / "on", gcc, sources)
    assert rules["LLAMA_PY_COPIED_PAGES"] == "applied"
    assert "/corrected/" in command
    assert "tensor_alignment/mapped_files.h" in command
    (command,), rules = configured(tmp_path / "off", gcc, sources, "-DLLAMA_PY_COPIED_PAGES=OFF")
    assert rules["LLAMA_PY_COPIED_PAGES"] == "off"
    assert "/corrected/" not in command
    assert "tensor_alignment/mapped_files.h" in command


def test_without_the_rule_they_stay(llama_cpp: Path) -> None:
    """When this fails, weights are copied otherwise, and the rule may have done its work."""
    text = (llama_cpp / "src" / "llama-model-loader.cpp").read_text(encoding="utf-8")
    assert text.count("ggml_backend_tensor_set(cur, data, 0, n_size);") == 1
    assert "madvise" not in text
