"""One server with two models, of which one is in memory at a time.

Needs ``pip install '.[server]' openai``.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from openai import OpenAI

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

with tempfile.TemporaryDirectory() as folder:
    config = Path(folder) / "server.toml"
    config.write_text(SETTINGS, encoding="utf-8")
    command = [sys.executable, "-m", "llama_py", "serve", "--config", str(config)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    url = server.stdout.readline().split()[-1]  # it serves now, and has read its settings

question = [{"role": "user", "content": "What is 2 + 3?"}]
with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
    for name in ("gpt-4o", "short"):
        reply = client.chat.completions.create(model=name, messages=question, temperature=0)
        print(name, "is", reply.model + ":", reply.choices[0].message.content)
        for model in client.models.list():
            print("   ", model.id, model.status["value"])

server.terminate()
server.communicate()
