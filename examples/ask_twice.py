"""Questions about one picture: python ask_twice.py MODEL.gguf MMPROJ.gguf PICTURE.png

The picture is encoded and evaluated for the first one only.
"""

import sys
import time

from llama_py import Image, Llama

model, projector, path = sys.argv[1:4]

with Llama(model, mmproj=projector) as llm:
    picture = Image(path)
    for question in ("What is in this picture?", "Which colours does it have?"):
        message = {"role": "user", "content": [picture, question]}
        start = time.perf_counter()
        response = llm.create_chat_completion([message], max_tokens=50, temperature=0)
        seconds = time.perf_counter() - start
        print(f"> {question}\n{response['choices'][0]['message']['content']}")

        usage = response["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        print(f"  [{cached} of {usage['prompt_tokens']} prompt tokens were in memory", end="")
        print(f", {1000 * seconds:.0f} ms]")
