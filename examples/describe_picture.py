"""What is in a picture: python describe_picture.py MODEL.gguf MMPROJ.gguf PICTURE.png"""

import sys

from llama_py import Image, Llama

model, projector, picture = sys.argv[1:4]

with Llama(model, mmproj=projector) as llm:
    message = {"role": "user", "content": [Image(picture), "What is in this picture?"]}
    response = llm.create_chat_completion([message], max_tokens=200, temperature=0)
    print(response["choices"][0]["message"]["content"])

    # A picture is a part of the prompt: so many tokens were read.
    print(f"  [{response['usage']['prompt_tokens']} tokens with the picture]")
