"""One server with two models, of which one is in memory at a time.

Needs ``pip install '.[server]'``.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from llama_py import demo_model_path

# Here the two are one file with other settings; they could be any two.
SETTINGS = f"""
port = 0
max_loaded = 1
log_level = "warning"

[[model]]
id = "long"
path = '{demo_model_path()}'
aliases = ["gpt-*"]

[[model]]
id = "short"
path = '{demo_model_path()}'
n_ctx = 512
"""


def call(path: str, body: dict | None = None) -> dict:
    """A request to the server."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


with tempfile.TemporaryDirectory() as folder:
    config = Path(folder) / "server.toml"
    config.write_text(SETTINGS, encoding="utf-8")
    server = subprocess.Popen(
        [sys.executable, "-m", "llama_py", "serve", "--config", str(config)],
        stdout=subprocess.PIPE,
        text=True,
    )
    url = server.stdout.readline().split()[-1]

question = [{"role": "user", "content": "What is 2 + 3?"}]
for name in ("gpt-4o", "short"):
    body = {"model": name, "messages": question, "temperature": 0}
    reply = call("/v1/chat/completions", body)
    print(name, "is", reply["model"] + ":", reply["choices"][0]["message"]["content"])
    for model in call("/v1/models")["data"]:
        print("   ", model["id"], model["status"]["value"])

server.terminate()
server.wait()
server.stdout.close()
