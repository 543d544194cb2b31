"""Vulkan's devices that are lost (``rule.cmake``). What it does: ``tests/device/test_lost.py``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.builds import ROOT, configured

pytestmark = pytest.mark.slow

NAME = "ggml-vulkan.cpp"


def corrected(source: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    """What the rule makes of a tree: CMake runs it, and writes what would be compiled."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("needs cmake")
    functions = ROOT / "native" / "cmake" / "CorrectedSource.cmake"
    rule = Path(__file__).with_name("rule.cmake")
    text = rule.read_text(encoding="utf-8")
    # A script has no targets: what is exchanged is looked at, and not what is compiled.
    text = text.replace("elseif (NOT TARGET ggml-vulkan)", "elseif (FALSE)")
    text = text.replace("${CMAKE_CURRENT_FUNCTION_LIST_DIR}", str(rule.parent))
    text = text.replace(
        'llama_py_compile_copy(ggml-vulkan "${folder}" ggml-vulkan.cpp "${text}")',
        f'file(WRITE "{scratch / NAME}" "${{text}}")\n    return()',
    )
    (scratch / "rule.cmake").write_text(text, encoding="utf-8")
    script = scratch / "try.cmake"
    script.write_text(
        f'set(LLAMA_PY_SOURCE_DIR "{source}")\ninclude("{functions}")\n'
        f'include("{scratch / "rule.cmake"}")\n',
        encoding="utf-8",
    )
    command = [cmake, "-P", str(script)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_has_no_effect_without_vulkan(gcc: str, tmp_path: Path) -> None:
    _, rules = configured(tmp_path, gcc, ("/ggml-vulkan.cpp",))
    assert rules["LLAMA_PY_LOST_DEVICES"] == "without effect"


def test_each_interface_of_vulkan_is_caught(llama_cpp: Path, tmp_path: Path) -> None:
    done = corrected(llama_cpp, tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / NAME).read_text(encoding="utf-8")
    assert text.count("llama_py_catching(ggml_backend_vk_buffer_interface)") == 2
    assert "llama_py_catching(ggml_backend_vk_interface)" in text
    assert "llama_py_catching(ggml_backend_vk_device_i)" in text


def test_lines_that_are_others_stop_the_build(llama_cpp: Path, tmp_path: Path) -> None:
    folder = tmp_path / "source" / "ggml" / "src" / "ggml-vulkan"
    folder.mkdir(parents=True)
    text = (llama_cpp / "ggml" / "src" / "ggml-vulkan" / NAME).read_text(encoding="utf-8")
    changed = text.replace("static bool vk_instance_initialized = false;", "")
    assert changed != text
    (folder / NAME).write_text(changed, encoding="utf-8")
    done = corrected(tmp_path / "source", tmp_path)
    assert done.returncode != 0
    assert "LLAMA_PY_LOST_DEVICES" in done.stderr


def test_without_the_rule_a_lost_device_ends_the_process(llama_cpp: Path) -> None:
    """When this fails, llama.cpp may have another way, and the rule less to do."""
    text = (llama_cpp / "ggml" / "src" / "ggml-vulkan" / NAME).read_text(encoding="utf-8")
    caught = text.split("catch (vk::DeviceLostError &)")[1:]
    assert caught
    assert all("throw;" in each[:800] for each in caught), "somebody keeps one to himself"
