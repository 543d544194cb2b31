"""A server in a process of its own, and OpenAI's client: replies, a stream, and reuse.

Needs ``pip install '.[server]' openai``.
"""

import subprocess
import sys

from openai import OpenAI

# Port 0 is a free one. The first line that the server prints says where it is.
server = subprocess.Popen(
    [sys.executable, "-m", "llama_py", "serve", "--port", "0", "--log-level", "warning"],
    stdout=subprocess.PIPE,
    text=True,
)
url = server.stdout.readline().split()[-1]
client = OpenAI(base_url=f"{url}/v1", api_key="none")
print(client.models.list().data[0].id)

# A conversation: each turn evaluates only what is new in it.
messages = []
for text in ("My name is Anna.", "What is my name?"):
    messages.append({"role": "user", "content": text})
    reply = client.chat.completions.create(model="demo", messages=messages, temperature=0)
    messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    cached = reply.usage.prompt_tokens_details.cached_tokens
    print(f"{reply.choices[0].message.content} [{cached} of {reply.usage.prompt_tokens} reused]")

# A stream. Leaving the block ends the request.
question = [{"role": "user", "content": "Count to 5."}]
with client.chat.completions.create(
    model="demo", messages=question, temperature=0, stream=True
) as stream:
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

client.close()
server.terminate()  # what is being answered may end
server.communicate()
