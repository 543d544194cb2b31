# requires: openai httptools uvicorn starlette prometheus-client
"""OpenAI's client, with ``python -m llama_cpp.server``."""

import subprocess
import sys

from openai import OpenAI

command = [sys.executable, "-m", "llama_cpp.server", "--model", sys.argv[1], "--port", "0"]
with subprocess.Popen([*command, "--n_ctx", "512"], stdout=subprocess.PIPE, text=True) as server:
    try:
        url = next(line.split()[-1] for line in server.stdout if "serves at" in line)
        with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            model = next(iter(client.models.list())).id
            messages = [{"role": "user", "content": "What is 2 + 3?"}]
            chat = client.chat.completions.create(model=model, messages=messages, temperature=0)
            text = chat.choices[0].message.content
            stream = client.chat.completions.create(
                model=model, messages=messages, temperature=0, stream=True
            )
            parts = [each.choices[0].delta.content or "" for each in stream if each.choices]
            scored = client.completions.create(
                model=model, prompt="2 + 3 =", echo=True, logprobs=1, max_tokens=1, temperature=0
            )
    finally:
        server.terminate()
assert text == "".join(parts) == "2 + 3 = 5.", (text, parts)
assert len(parts) > 2, parts
assert len(scored.choices[0].logprobs.tokens) > 4, scored
print(text, len(parts), scored.choices[0].logprobs.tokens)
