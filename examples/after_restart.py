"""A conversation that goes on after the program ended: python after_restart.py [MODEL.gguf]

The second process finds what the first one evaluated in a folder, and evaluates the new turn only.
"""

import subprocess
import sys
import tempfile

from llama_py import Llama, LlamaDiskCache, demo_model_path

TOLD = [
    {"role": "user", "content": "My name is Anna."},
    {"role": "assistant", "content": "Nice to meet you, Anna."},
]
for number in range(1, 10):
    TOLD += [
        {"role": "user", "content": f"What is {number} + 1?"},
        {"role": "assistant", "content": f"{number} + 1 = {number + 1}."},
    ]
MESSAGES = [*TOLD, {"role": "user", "content": "What is 2 + 3?"}]
MESSAGES += [{"role": "assistant", "content": "2 + 3 = 5."}]
MESSAGES += [{"role": "user", "content": "What is my name?"}]


def ask(path: str, folder: str, messages: int) -> None:
    """One process: it loads the model, asks, and says how much of the prompt was new to it."""
    with Llama(path) as llm:
        llm.states.set_store(LlamaDiskCache(folder))
        reply = llm.create_chat_completion(MESSAGES[:messages], temperature=0, max_tokens=16)
        total = reply["usage"]["prompt_tokens"]
        print(reply["choices"][0]["message"]["content"])
        print(f"[{total - reply.cache['reused']} of {total} prompt tokens were evaluated]")


if len(sys.argv) == 4:
    ask(sys.argv[1], sys.argv[2], int(sys.argv[3]))
else:
    model = sys.argv[1] if len(sys.argv) > 1 else demo_model_path()
    with tempfile.TemporaryDirectory() as directory:
        for count in (len(TOLD) + 1, len(MESSAGES)):
            subprocess.run(
                [sys.executable, __file__, str(model), directory, str(count)], check=True
            )
