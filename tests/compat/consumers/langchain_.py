# requires: langchain-community
"""LangChain's LLM, chat model with tools, and embeddings."""

import sys

from langchain_community.chat_models import ChatLlamaCpp
from langchain_community.embeddings import LlamaCppEmbeddings
from langchain_community.llms import LlamaCpp

path = sys.argv[1]
llm = LlamaCpp(model_path=path, temperature=0.0, max_tokens=8, n_ctx=512, verbose=False)
assert llm.invoke("2 + 3 =") == "".join(llm.stream("2 + 3 ="))
chat = ChatLlamaCpp(model_path=path, temperature=0.0, n_ctx=2048, verbose=False, max_tokens=64)
text = chat.invoke("What is 2 + 3?").content
assert text == "2 + 3 = 5.", text
assert "".join(each.content for each in chat.stream("What is 2 + 3?")) == text
tool = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
bound = chat.bind_tools([tool], tool_choice="get_weather")
calls = bound.invoke("What is the weather in Paris?").tool_calls
assert calls[0]["args"] == {"city": "Paris"}, calls
vectors = LlamaCppEmbeddings(model_path=path, n_ctx=512, verbose=False).embed_documents(["a", "b"])
assert len(vectors) == 2
print(text, calls[0]["args"], len(vectors[0]))
