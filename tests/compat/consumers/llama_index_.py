# requires: llama-index-llms-llama-cpp
"""LlamaIndex's LLM: complete, stream, chat."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.llama_cpp import LlamaCPP

llm = LlamaCPP(
    model_path=sys.argv[1],
    temperature=0.0,
    max_new_tokens=16,
    context_window=512,
    model_kwargs={"n_gpu_layers": 0},
    messages_to_prompt=lambda messages: (
        "".join(f"<|im_start|>{each.role.value}\n{each.content}<|im_end|>\n" for each in messages)
        + "<|im_start|>assistant\n"
    ),
    completion_to_prompt=lambda text: text,
    verbose=False,
)
assert llm.metadata.context_window == 512
assert llm.complete("2 + 3 = ").text
assert "".join(each.delta for each in llm.stream_complete("2 + 3 = "))
text = llm.chat([ChatMessage(role="user", content="What is 2 + 3?")]).message.content
assert "5" in text, text
print(text)
