"""Every public call and attribute, with the type that a type checker sees.

Nothing here runs; ``tests/test_typing.py`` checks it, and that nothing public is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

from llama_py import (
    AsyncLlama,
    AsyncReplyStream,
    BytesReport,
    CacheReport,
    ChatCompletionChunk,
    ChatReply,
    ChatSession,
    CompletionChunk,
    CompletionReply,
    CompletionUsage,
    CreateEmbeddingResponse,
    HistogramReport,
    Llama,
    LlamaState,
    MetricsReport,
    ModelCache,
    ModelStates,
    OverflowReport,
    Prewarmed,
    Ranked,
    ReplyStream,
    ReuseInfo,
    Score,
    SequenceReport,
    SnapshotInfo,
    Timings,
    TrimMessages,
)
from llama_py.api.embedding.lists import VectorLists
from llama_py.api.llama_cpp_names import LlamaTokenizer
from llama_py.api.sessions.session import TurnStream as SpokenStream
from llama_py.chat.rendered import RenderedChat
from llama_py.chat.templates.template import ChatTemplate
from llama_py.core.vocab import Vocab
from llama_py.dialects.openai.types import (
    ChatCompletionDelta,
    ChatCompletionLogprobs,
    ChatCompletionResponseChoice,
    CompletionChoice,
    FinishReason,
)
from llama_py.functions.rounds import ToolEvent, ToolRun
from llama_py.llama_cpp import llama_context_p, llama_model_p
from llama_py.options.values import ChatPolicy

llm = Llama("m.gguf", n_ctx=4096, overflow=TrimMessages())
messages = [{"role": "user", "content": "Hello!"}]
flag = bool(input())

# ---- Llama

assert_type(llm, Llama)
assert_type(Llama.from_pretrained("owner/name", n_ctx=512), Llama)
assert_type(
    llm.create_completion("x", max_tokens=5, stop=["a"], logit_bias={5: 1.0}), CompletionReply
)
assert_type(llm.create_completion([1, 2], stream=True), ReplyStream[CompletionChunk])
assert_type(
    llm.create_completion("x", stream=flag),
    CompletionReply | ReplyStream[CompletionChunk],
)
assert_type(llm("x", temperature=None), CompletionReply)
assert_type(llm.create_chat_completion(messages, temperature=0.5, seed=7, tools=[{}]), ChatReply)
assert_type(
    llm.create_chat_completion(messages, stream=True),
    ReplyStream[ChatCompletionChunk],
)
assert_type(
    llm.create_chat_completion(messages, stream=flag),
    ChatReply | ReplyStream[ChatCompletionChunk],
)
assert_type(llm.render_chat(messages, tools=[{}]), RenderedChat)
assert_type(llm.chat_session("Be brief.", temperature=0.5), ChatSession)
assert_type(llm.score("x", ["y", [1, 2]]), list[Score])
assert_type(llm.embed(["x"]), VectorLists)
assert_type(llm.embed("x", return_count=True), tuple[VectorLists, int])
assert_type(llm.create_embedding("x"), CreateEmbeddingResponse)
assert_type(llm.rerank("x", ["y"], top_n=1), list[Ranked])
assert_type(llm.pooling_type(), int)
assert_type(llm.tokenize("x"), list[int])
assert_type(llm.detokenize([1]), bytes)
assert_type(llm.tokenizer(), LlamaTokenizer)
assert_type(llm.eval([1]), None)
assert_type(llm.sample(temp=0.5, top_k=3), int)
assert_type(
    llm.generate([1], temp=0.5, grammar='root ::= "a"'), Generator[int, Sequence[int] | None, None]
)
assert_type(llm.set_seed(3), None)
assert_type(llm.reset(), None)
assert_type(llm.close(), None)
assert_type(llm.n_ctx(), int)
assert_type(llm.n_embd(), int)
assert_type(llm.n_vocab(), int)
assert_type(llm.token_eos(), int)
assert_type(llm.token_bos(), int)
assert_type(llm.token_nl(), int)
assert_type(llm.n_tokens, int)
assert_type(llm.eval_tokens, list[int])
assert_type(llm.input_ids, NDArray[np.intc])
assert_type(llm.eval_logits, deque[list[float]])
assert_type(llm.last_logits, NDArray[np.float32])
assert_type(llm.scores, NDArray[np.float32])
assert_type(llm.logits_to_logprobs([1.0]), NDArray[np.float32])
assert_type(llm.longest_token_prefix([1], [1]), int)
assert_type(llm.vocab, Vocab)
assert_type(llm.metadata, dict[str, str])
assert_type(llm.model, llama_model_p)
assert_type(llm.ctx, llama_context_p)
assert_type(llm.model_path, str)
assert_type(llm.seed, int)
assert_type(llm.last_n_tokens_size, int)
assert_type(llm.spm_infill, bool)
assert_type(llm.json_calls, bool)
assert_type(llm.special_tokens_in_content, str)
assert_type(llm.overflow, ChatPolicy | None)
assert_type(llm.chat_format, str | None)
assert_type(llm.chat_template, ChatTemplate)
assert_type(llm.cache_info, ReuseInfo)
assert_type(llm.last_overflow, OverflowReport | None)
assert_type(llm.metrics, MetricsReport)
assert_type(llm.metrics["evaluated"], int)
assert_type(llm.metrics["decode_seconds"], float)
assert_type(llm.metrics["queue_seconds"], HistogramReport)
assert_type(llm.metrics["queue_seconds"]["buckets"], dict[str, int])
assert_type(llm.memory_report(), CacheReport)
assert_type(llm.set_cache(None), None)
assert_type(llm.save_state(), LlamaState)
assert_type(llm.load_state(llm.save_state()), None)
assert_type(llm.snapshot("a"), SnapshotInfo)
assert_type(llm.restore("a"), SnapshotInfo)
assert_type(llm.snapshots(), list[SnapshotInfo])
assert_type(llm.drop_snapshot("a"), None)
assert_type(llm.prewarm(messages, tools=[{}]), Prewarmed)

# ---- the states

states = llm.states
assert_type(states, ModelStates)
assert_type(states.save(), LlamaState)
assert_type(states.save("a", length=5), LlamaState)
assert_type(states.restore("a"), SnapshotInfo)
assert_type(states.restore(states.save()), SnapshotInfo)
assert_type(states.list(), list[SnapshotInfo])
assert_type(states.drop("a"), None)
assert_type(states.pin("a"), None)
assert_type(states.unpin(), None)
assert_type(states.set_store(None), None)
assert_type(states.flush(), bool)

# ---- the cache

cache = llm.cache
assert_type(cache, ModelCache)
assert_type(cache.info, ReuseInfo)
assert_type(cache.info["reused"], int)
assert_type(cache.info["path"], Literal["cold", "tokens", "text"])
assert_type(cache.info["session"], str | None)
assert_type(cache.info.get("evaluated", 0), int)
assert_type(cache.report(), CacheReport)
assert_type(cache.report()["sequences"], list[SequenceReport])
assert_type(cache.report()["sequences"][0]["tokens"], int)
assert_type(cache.report()["bytes"], BytesReport)
assert_type(cache.report()["bytes"]["context"], int)
assert_type(cache.flush(), bool)
assert_type(cache.set_store(None), None)
assert_type(cache.save_state(), LlamaState)
assert_type(cache.load_state(cache.save_state()), None)
assert_type(cache.snapshot("a"), SnapshotInfo)
assert_type(cache.restore("a"), SnapshotInfo)
assert_type(cache.snapshots(), list[SnapshotInfo])
assert_type(cache.drop("a"), None)
assert_type(cache.prewarm(messages), Prewarmed)
assert_type(cache.pin("a"), None)
assert_type(cache.unpin(), None)
assert_type(cache.reset(cancel=True), None)

# ---- functions as tools


def weather(city: str) -> str:
    return city


assert_type(llm.run_tools(messages, [weather], max_rounds=2, temperature=0.5), ToolRun)
assert_type(llm.run_tools(messages, [weather], stream=True), Iterator[ToolEvent])
assert_type(llm.chat_session().run("x", [weather]), ToolRun)


async def awaited_tools(model: AsyncLlama) -> None:
    assert_type(await model.run_tools(messages, [weather], max_rounds=2), ToolRun)
    async for event in model.stream_tools(messages, [weather]):
        assert_type(event, ToolEvent)


# ---- replies

text = llm.create_completion("x")
assert_type(text["choices"], list[CompletionChoice])
assert_type(text["choices"][0]["text"], str)
assert_type(text["choices"][0]["finish_reason"], FinishReason | None)
assert_type(text["usage"], CompletionUsage)
assert_type(text["timings"], Timings)
assert_type(text.cache, ReuseInfo)
assert_type(text.dropped, OverflowReport | None)
answer = llm.create_chat_completion(messages)
assert_type(answer["choices"], list[ChatCompletionResponseChoice])
assert_type(answer["choices"][0]["message"]["content"], str | None)
assert_type(answer["choices"][0]["finish_reason"], FinishReason | None)
assert_type(answer["choices"][0]["logprobs"], ChatCompletionLogprobs | None)
assert_type(answer["usage"]["total_tokens"], int)
stream = llm.create_chat_completion(messages, stream=True)
assert_type(next(stream), ChatCompletionChunk)
assert_type(next(stream)["choices"][0]["delta"], ChatCompletionDelta)
assert_type(next(stream)["choices"][0]["finish_reason"], FinishReason | None)
assert_type(stream.cache, ReuseInfo)
assert_type(stream.dropped, OverflowReport | None)
assert_type(stream.close(), None)

# ---- sessions

session = ChatSession(llm, "Be brief.", max_tokens=5)
assert_type(session.send("Hello!", temperature=0.5), str)
assert_type(session.send("Hello!", stream=True), SpokenStream)
assert_type(session.send("Hello!", stream=flag), str | SpokenStream)
assert_type(session.send_tool_result("id", "x"), str | None)
assert_type(session.send_tool_result("id", "x", stream=True), SpokenStream | None)
assert_type(session.regenerate(), str)
assert_type(session.regenerate(stream=True), SpokenStream)
assert_type(session.messages, list[dict[str, Any]])
assert_type(session.tool_calls, list[dict[str, Any]])
assert_type(session.system, str | None)
assert_type(session.session_id, str)
assert_type(session.overflow, ChatPolicy | None)
assert_type(session.last_response, ChatReply | None)
assert_type(session.dropped, list[dict[str, Any]])
assert_type(session.edit(0, "x"), None)
assert_type(session.reset(), None)
assert_type(session.fork(), ChatSession)
assert_type(session.save("file"), None)
assert_type(ChatSession.load(llm, "file", temperature=0.5), ChatSession)
assert_type(session.reopen("file"), ChatSession)
assert_type(session.close(), None)

# ---- asyncio


async def asynchronous(model: AsyncLlama) -> None:
    assert_type(await AsyncLlama.load("m.gguf", n_ctx=512), AsyncLlama)
    assert_type(await model.create_completion("x", max_tokens=5), CompletionReply)
    assert_type(
        await model.create_completion("x", stream=True),
        AsyncReplyStream[CompletionChunk],
    )
    assert_type(
        await model.create_completion("x", stream=flag),
        CompletionReply | AsyncReplyStream[CompletionChunk],
    )
    assert_type(await model("x"), CompletionReply)
    assert_type(await model.create_chat_completion(messages, temperature=0.5), ChatReply)
    chunks = await model.create_chat_completion(messages, stream=True)
    assert_type(chunks, AsyncReplyStream[ChatCompletionChunk])
    assert_type(await chunks.__anext__(), ChatCompletionChunk)
    assert_type(chunks.cache, ReuseInfo)
    assert_type(chunks.dropped, OverflowReport | None)
    assert_type(await chunks.whole(), CompletionReply | ChatReply)
    assert_type(await model.run(model.states.save, "a"), LlamaState)
    assert_type(await chunks.aclose(), None)
    assert_type(await model.score("x", ["y"]), list[Score])
    assert_type(await model.run(model.llama.n_ctx), int)
    assert_type(model.close(), None)
    assert_type(await model.aclose(), None)
