"""Calls that a type checker refuses: ``# E`` marks the lines, ``# E: NAME`` says what is unknown.

Nothing here runs; ``tests/test_typing.py`` checks it.
"""

from __future__ import annotations

from llama_py import AsyncLlama, ChatSession, Llama, TrimMessages

# ---- loading: a misspelled name, a wrong type, a name that no enumeration has

Llama()  # E
Llama("m.gguf", n_cxt=4096)  # E: n_cxt
Llama("m.gguf", n_ctx="4096")  # E
Llama("m.gguf", n_ctx=None)  # E
Llama("m.gguf", 4096)  # E
Llama("m.gguf", type_k="q9_0")  # E
Llama("m.gguf", split_mode="rows")  # E
Llama("m.gguf", rope_scaling_type="yarm")  # E
Llama("m.gguf", flash_attn="yes")  # E
Llama("m.gguf", special_tokens_in_content="drop")  # E
Llama("m.gguf", embedding="yes")  # E
Llama("m.gguf", draft_model=object())  # E
Llama("m.gguf", overflow=TrimMessages)  # E
Llama("m.gguf", progress=5)  # E
Llama.from_pretrained("a/b", n_gpu_layer=3)  # E: n_gpu_layer
AsyncLlama("m.gguf", n_cxt=4096)  # E: n_cxt
AsyncLlama("m.gguf", n_ctx="4096")  # E

llm = Llama("m.gguf", type_k="q8_0", split_mode="layer", flash_attn="auto", n_ctx=4096)

# ---- completions

llm.create_completion("x", max_token=5)  # E: max_token
llm.create_completion("x", temperature="hot")  # E
llm.create_completion("x", stop=5)  # E
llm.create_completion("x", messages=[])  # E: messages
llm.create_completion("x", tools=[])  # E: tools
llm.create_completion(5)  # E
llm("x", max_token=5)  # E: max_token
llm.create_completion("x", stream="yes")  # E

# ---- chats

messages = [{"role": "user", "content": "Hello!"}]
llm.create_chat_completion(messages, max_token=5)  # E: max_token
llm.create_chat_completion(messages, top_k=1.5)  # E
llm.create_chat_completion(messages, stop=[1])  # E
llm.create_chat_completion(messages, echo=True)  # E: echo
llm.create_chat_completion(messages, logprobs=5)  # E
llm.create_chat_completion(messages, reasoning_effort="extreme")  # E
llm.create_chat_completion(messages, response_format="json")  # E
llm.create_chat_completion("Hello!")  # E
llm.render_chat(messages, max_token=5)  # E: max_token
llm.score("x", ["y"], tool=[])  # E: tool
llm.prewarm(messages, tool=[])  # E: tool
llm.cache.prewarm(messages, tool=[])  # E: tool

# ---- sessions: what the session sets itself, and the rest

session = llm.chat_session("Be brief.", temperature=0.5)
llm.chat_session(max_token=5)  # E: max_token
ChatSession(llm, temperatur=0.5)  # E: temperatur
ChatSession(llm, n=2)  # E: n
session.send("Hello!", max_token=5)  # E: max_token
session.send("Hello!", session_id="other")  # E: session_id
session.send(5)  # E
session.regenerate(temperature="hot")  # E
session.send_tool_result("id", "result", max_token=5)  # E: max_token

# ---- the rest

llm.sample(temprature=0.5)  # E: temprature
llm.sample(max_tokens=5)  # E: max_tokens
llm.generate([1], top_kk=5)  # E: top_kk
llm.generate("text")  # E
llm.set_cache("directory")  # E
llm.load_state(b"bytes")  # E


async def asynchronous(model: AsyncLlama) -> None:
    await model.create_completion("x", max_token=5)  # E: max_token
    await model.create_chat_completion(messages, max_token=5)  # E: max_token
    await model.create_chat_completion(messages, temperature="hot")  # E
    await model.score("x", ["y"], tool=[])  # E: tool
    await AsyncLlama.load("m.gguf", n_cxt=4096)  # E: n_cxt


# ---- replies: keys that they do not have, and what may be None

reply = llm.create_chat_completion(messages)
reply["choice"]  # E
reply["choices"][0]["message"]["contents"]  # E: contents
len(reply["choices"][0]["message"]["content"])  # E
for chunk in llm.create_chat_completion(messages, stream=True):
    chunk["choices"][0]["message"]  # E: message

# ---- reports: keys that they do not have

llm.cache.info["reuse"]  # E: reuse
reply.cache["cached"]  # E: cached
llm.metrics["request"]  # E: request
llm.metrics["queue_seconds"]["p99"]  # E: p99
llm.cache.report()["sequences"][0]["size"]  # E: size
llm.cache.report()["bytes"]["gpu"]  # E: gpu
