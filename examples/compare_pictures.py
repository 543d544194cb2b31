"""Two pictures in one question: python compare_pictures.py MODEL.gguf MMPROJ.gguf A.png B.png"""

import sys

from llama_py import Image, Llama

model, projector, first, second = sys.argv[1:5]

with Llama(model, mmproj=projector) as llm:
    content = ["The first:", Image(first), "The second:", Image(second), "What differs?"]
    message = {"role": "user", "content": content}
    for chunk in llm.create_chat_completion([message], max_tokens=200, temperature=0, stream=True):
        print(chunk["choices"][0]["delta"].get("content") or "", end="", flush=True)
    print()

    # The same pictures in the other order are another question, and both are known already.
    content[1], content[3] = content[3], content[1]
    response = llm.create_chat_completion([message], max_tokens=20, temperature=0)
    cached = response["usage"]["prompt_tokens_details"]["cached_tokens"]
    print(f"  [{cached} of {response['usage']['prompt_tokens']} prompt tokens were in memory]")
