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

    llm("gguf", "register-model", "demo", sys.argv[1])
    text = llm("-m", "gguf/demo", "What is 2 + 3?")
    assert text.strip(), text
    llm("gguf", "register-embed-model", "vectors", sys.argv[1])
    vector = llm("embed", "-m", "gguf/vectors", "-c", "hello")
    assert vector.startswith("["), vector
    print(text.strip(), len(vector.split(",")))
