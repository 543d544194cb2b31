"""Programs that speak Ollama's API talk to the server, unmodified.

They are installed into an environment of their own, which takes minutes and the network:
``pytest -m long -rP tests/server/test_ollama_programs.py``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.test_consumers import install, versions
from tests.server.serving import demo_settings, serving

PACKAGES = ["langchain-ollama", "llama-index-llms-ollama", "litellm", "pydantic-ai-slim[openai]"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def test_they_do_their_main_job(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    python = tmp_path / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    install(python, *PACKAGES)
    print(versions(python, PACKAGES))
    program = Path(__file__).with_name("ollama_programs.py")
    with serving(demo_settings()) as server:
        command = [str(python), "-W", "ignore", str(program), server.url, "demo"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-4000:]
