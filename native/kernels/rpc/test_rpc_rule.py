"""The library for RPC (``rule.cmake``). Builds are configured only; what it does: ``tests/rpc``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.builds import ROOT, configured

pytestmark = pytest.mark.slow

SOURCE = ("/rpc/ggml-rpc.cpp",)


def test_it_can_be_left_out(gcc: str, tmp_path: Path) -> None:
    commands, rules = configured(tmp_path / "on", gcc, SOURCE)
    assert rules["LLAMA_PY_RPC"] == "applied"
    assert len(commands) == 1
    commands, rules = configured(tmp_path / "off", gcc, SOURCE, "-DLLAMA_PY_RPC=OFF")
    assert rules["LLAMA_PY_RPC"] == "off"
    assert not commands


def test_lines_that_are_others_stop_the_build(llama_cpp: Path, tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("needs cmake")
    source = tmp_path / "source" / "ggml" / "src" / "ggml-rpc"
    shutil.copytree(llama_cpp / "ggml" / "src" / "ggml-rpc", source)
    text = (source / "ggml-rpc.cpp").read_text(encoding="utf-8")
    changed = text.replace("Remote RPC server crashed", "The RPC server crashed")
    assert changed != text
    (source / "ggml-rpc.cpp").write_text(changed, encoding="utf-8")
    functions = ROOT / "native" / "cmake" / "CorrectedSource.cmake"
    script = tmp_path / "try.cmake"
    script.write_text(
        f'set(LLAMA_PY_SOURCE_DIR "{tmp_path / "source"}")\n'
        f'include("{functions}")\ninclude("{Path(__file__).with_name("rule.cmake")}")\n',
        encoding="utf-8",
    )
    done = subprocess.run([cmake, "-P", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "LLAMA_PY_RPC" in done.stderr
    assert "docs/upstream-notes.md" in done.stderr


def test_without_the_rule_a_lost_server_ends_the_process(llama_cpp: Path) -> None:
    """When this fails, llama.cpp may have another way, and the rule less to do."""
    text = (llama_cpp / "ggml" / "src" / "ggml-rpc" / "ggml-rpc.cpp").read_text(encoding="utf-8")
    assert "#define RPC_STATUS_ASSERT(x) if (!(x)) GGML_ABORT(" in text
    assert text.count("RPC_STATUS_ASSERT(status);") == 3
