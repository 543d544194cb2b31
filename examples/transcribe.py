"""What is said in a sound: python transcribe.py MODEL.gguf MMPROJ.gguf SOUND.wav

The projector has to be one that hears; `llama-py inspect MMPROJ.gguf` says whether it does.
"""

import sys

from llama_py import Audio, Llama

model, projector, sound = sys.argv[1:4]

with Llama(model, mmproj=projector) as llm:
    message = {"role": "user", "content": [Audio(sound), "Write down what is said."]}
    response = llm.create_chat_completion([message], max_tokens=400, temperature=0)
    print(response["choices"][0]["message"]["content"])
    print(f"  [{response['usage']['prompt_tokens']} tokens with the sound]")
