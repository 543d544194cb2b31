# requires: llm-llama-cpp
"""The older plugin of ``llm``."""

import os
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as home:
    environment = {**os.environ, "LLM_USER_PATH": home}

    def llm(*arguments: str) -> str:
        command = [sys.executable, "-m", "llm", *arguments]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    llm("llama-cpp", "add-model", sys.argv[1], "--alias", "demo")
    text = llm("-m", "demo", "The sky is", "-o", "max_tokens", "8")
    assert text.strip(), text
    print(text.strip())
