# requires: llama-cpp-haystack
"""Haystack's generators."""

import sys

from haystack.dataclasses import ChatMessage
from haystack_integrations.components.generators.llama_cpp import (
    LlamaCppChatGenerator,
    LlamaCppGenerator,
)

options = {"n_ctx": 512, "n_batch": 128, "model_kwargs": {"verbose": False}}
generator = LlamaCppGenerator(model=sys.argv[1], **options)
generator.warm_up()
assert generator.run("2 + 3 =", generation_kwargs={"max_tokens": 4})["replies"][0]
chat = LlamaCppChatGenerator(
    model=sys.argv[1], generation_kwargs={"temperature": 0.0, "max_tokens": 16}, **options
)
chat.warm_up()
text = chat.run([ChatMessage.from_user("What is 2 + 3?")])["replies"][0].text
assert text == "2 + 3 = 5.", text
print(text)
