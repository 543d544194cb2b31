# requires: llm-gguf
"""The plugin of the command line tool ``llm``: chat and embeddings."""

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

    llm("gguf", "register-model", sys.argv[1], "--alias", "demo")
    text = llm("-m", "demo", "What is 2 + 3?", "--no-stream")
    assert text.strip(), text
    llm("gguf", "register-embed-model", sys.argv[1], "--alias", "vectors")
    vector = llm("embed", "-m", "vectors", "-c", "hello")
    assert vector.startswith("["), vector
    print(text.strip(), len(vector.split(",")))
