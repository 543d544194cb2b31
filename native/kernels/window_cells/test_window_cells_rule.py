"""Corrected lines of llama.cpp (``rule.cmake``). Builds are configured only.

What they compute is compared in ``tests/memory/test_window_cells.py``.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.builds import ROOT, configured
from tools.move_pin.touched import functions

pytestmark = pytest.mark.slow


def test_the_cells_of_windows_can_be_left_as_llama_cpp_has_them(gcc: str, tmp_path: Path) -> None:
    source = ("/llama-kv-cache.cpp",)
    (command,), rules = configured(tmp_path / "on", gcc, source)
    assert rules["LLAMA_PY_WINDOW_CELLS"] == "applied"
    assert "/corrected/llama-kv-cache.cpp" in command
    off = "-DLLAMA_PY_WINDOW_CELLS=OFF", "-DLLAMA_PY_CELL_ORDER=OFF"
    (command,), rules = configured(tmp_path / "off", gcc, source, *off)
    assert rules["LLAMA_PY_WINDOW_CELLS"] == "off"
    assert "/corrected/" not in command


def test_a_fault_that_is_not_where_it_was_does_not_come_back_in_silence(
    llama_cpp: Path, tmp_path: Path
) -> None:
    """Another llama.cpp, whose lines are others: the build stops, and says what to look at."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("needs cmake")
    text = (llama_cpp / "src" / "llama-kv-cache.cpp").read_text(encoding="utf-8")
    changed = text.replace("if (seq_pos_max_rm[s] == -1)", "if (seq_pos_max_rm[s] < 0)")
    assert changed != text
    (tmp_path / "source" / "src").mkdir(parents=True)
    (tmp_path / "source" / "src" / "llama-kv-cache.cpp").write_text(changed, encoding="utf-8")
    functions = ROOT / "native" / "cmake" / "CorrectedSource.cmake"
    rule = Path(__file__).with_name("rule.cmake")
    script = tmp_path / "try.cmake"
    script.write_text(
        f'set(LLAMA_PY_SOURCE_DIR "{tmp_path / "source"}")\n'
        f'include("{functions}")\ninclude("{rule}")\n',
        encoding="utf-8",
    )
    done = subprocess.run([cmake, "-P", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "LLAMA_PY_WINDOW_CELLS" in done.stderr
    assert "docs/upstream-notes.md" in done.stderr


def test_without_the_rule_cells_are_removed_on_trial(llama_cpp: Path) -> None:
    """When this fails, llama.cpp places batches otherwise, and the rule may have done its work."""
    text = (llama_cpp / "src" / "llama-kv-cache.cpp").read_text(encoding="utf-8")
    found = functions(text)
    assert "apply_ubatch(" in found["llama_kv_cache::prepare"]
    placed = found["llama_kv_cache::apply_ubatch"]
    assert "if (seq_pos_max_rm[s] == -1)" in placed
    assert "seq_rm(s," in placed
