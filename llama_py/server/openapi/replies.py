"""What the server answers, as JSON schemas."""

from __future__ import annotations

from llama_py.dialects.openai.types import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
)
from llama_py.server.openapi.schemas import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    Schema,
    any_of,
    listing,
    of_type,
    one_of_texts,
    record,
    reference,
    said,
)

__all__ = ["reply_schemas"]

_NULL: Schema = {"type": "null"}
_MAYBE_TEXT = any_of(STRING, _NULL)


def reply_schemas() -> dict[str, Schema]:
    """The schemas by name."""
    return {
        "Error": _error(),
        "AnthropicError": _anthropic_error(),
        "ChatCompletion": of_type(ChatCompletion),
        "ChatCompletionChunk": of_type(ChatCompletionChunk),
        "Completion": of_type(Completion),
        "CompletionChunk": of_type(CompletionChunk),
        **_embeddings(),
        "Response": _response(),
        "ResponseItems": record(
            {
                "object": one_of_texts("list"),
                "data": listing(OBJECT),
                "first_id": _MAYBE_TEXT,
                "last_id": _MAYBE_TEXT,
                "has_more": BOOLEAN,
            }
        ),
        "DeletedResponse": _deleted("response.deleted"),
        "InputTokens": record({"object": STRING, "input_tokens": INTEGER}, ["input_tokens"]),
        "Message": _message(),
        **_models(),
        **_native(),
        **_sessions(),
        "Description": OBJECT,
        "Status": record({"status": STRING}, ["status"]),
    }


def _embeddings() -> dict[str, Schema]:
    usage = record({"prompt_tokens": INTEGER, "total_tokens": INTEGER})
    vector = said(any_of(listing(NUMBER), STRING), "Numbers, or the base64 of float32 numbers.")
    one = record({"object": one_of_texts("embedding"), "index": INTEGER, "embedding": vector})
    native = record({"index": INTEGER, "embedding": listing(listing(NUMBER))})
    openai = record(
        {"object": one_of_texts("list"), "model": STRING, "data": listing(one), "usage": usage},
        ["data"],
    )
    document = record({"text": STRING})
    jina = record({"index": INTEGER, "relevance_score": NUMBER, "document": document})
    tei = record({"index": INTEGER, "score": NUMBER, "text": STRING})
    ranking = record(
        {"object": one_of_texts("list"), "model": STRING, "results": listing(jina), "usage": usage},
        ["results"],
    )
    return {
        "Embeddings": any_of(openai, listing(native)),
        "Ranking": any_of(ranking, listing(tei)),
    }


def _error() -> Schema:
    error = record(
        {
            "message": said(STRING, "What is wrong, and what to do."),
            "type": STRING,
            "param": said(_MAYBE_TEXT, "The place in the body (`messages[2].content`)."),
            "code": said(any_of(STRING, INTEGER), "For programs."),
        },
        ["message", "type"],
    )
    return record({"error": error}, ["error"])


def _anthropic_error() -> Schema:
    error = record({"type": STRING, "message": STRING}, ["type", "message"])
    kind = one_of_texts("error")
    return record({"type": kind, "error": error, "request_id": _MAYBE_TEXT}, ["type", "error"])


def _response() -> Schema:
    usage = record(
        {
            "input_tokens": INTEGER,
            "input_tokens_details": record({"cached_tokens": INTEGER}),
            "output_tokens": INTEGER,
            "output_tokens_details": record({"reasoning_tokens": INTEGER}),
            "total_tokens": INTEGER,
        }
    )
    return record(
        {
            "id": STRING,
            "object": one_of_texts("response"),
            "created_at": NUMBER,
            "status": one_of_texts("completed", "incomplete", "in_progress", "failed"),
            "model": STRING,
            "output": listing(OBJECT),
            "usage": any_of(usage, _NULL),
            "error": any_of(OBJECT, _NULL),
            "incomplete_details": any_of(OBJECT, _NULL),
            "previous_response_id": _MAYBE_TEXT,
        },
        ["id", "object", "created_at", "status", "model", "output"],
    )


def _deleted(kind: str) -> Schema:
    return record(
        {"id": STRING, "object": one_of_texts(kind), "deleted": BOOLEAN}, ["id", "object"]
    )


def _message() -> Schema:
    usage = record(
        {
            "input_tokens": said(INTEGER, "Tokens of the prompt that were evaluated."),
            "cache_read_input_tokens": said(INTEGER, "Those that were in memory."),
            "cache_creation_input_tokens": INTEGER,
            "output_tokens": INTEGER,
        },
        ["input_tokens", "output_tokens"],
    )
    reasons = one_of_texts("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal")
    return record(
        {
            "id": STRING,
            "type": one_of_texts("message"),
            "role": one_of_texts("assistant"),
            "model": STRING,
            "content": listing(reference("AnthropicBlock")),
            "stop_reason": any_of(reasons, _NULL),
            "stop_sequence": _MAYBE_TEXT,
            "usage": usage,
        },
        ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
    )


# ---- models --------------------------------------------------------------------------------------


def _models() -> dict[str, Schema]:
    sizes = ("n_ctx", "n_ctx_train", "n_embd", "n_params", "n_vocab", "size")
    status = record(
        {
            "value": one_of_texts("unloaded", "loading", "loaded", "unloading"),
            "failed": BOOLEAN,
            "reason": STRING,
        },
        ["value"],
    )
    model = record(
        {
            "id": STRING,
            "object": one_of_texts("model"),
            "created": INTEGER,
            "owned_by": STRING,
            "aliases": listing(STRING),
            "meta": any_of(record(dict.fromkeys(sizes, INTEGER)), _NULL),
            "status": status,
        },
        ["id", "object", "created", "owned_by"],
    )
    one = reference("Model")
    return {
        "Model": model,
        "ModelList": record(
            {
                "object": one_of_texts("list"),
                "data": listing(one),
                "models": said(listing(OBJECT), "The same in llama-server's older form."),
            },
            ["data"],
        ),
        "ModelChanged": record({"success": BOOLEAN, "model": one}, ["success", "model"]),
    }


# ---- llama-server's own, and sessions ------------------------------------------------------------


def _native() -> dict[str, Schema]:
    token = any_of(INTEGER, record({"id": INTEGER, "piece": any_of(STRING, listing(INTEGER))}))
    completion = {
        "content": STRING,
        "tokens": listing(INTEGER),
        "stop": BOOLEAN,
        "stop_type": STRING,
        "stopping_word": STRING,
        "tokens_evaluated": INTEGER,
        "tokens_cached": INTEGER,
        "timings": OBJECT,
    }
    return {
        "NativeCompletion": record(completion),
        "Tokens": record({"tokens": listing(token)}, ["tokens"]),
        "Count": record({"count": INTEGER}, ["count"]),
        "ExtraText": record({"text": STRING}, ["text"]),
        "Content": record({"content": STRING}, ["content"]),
        "Prompt": record({"prompt": STRING}, ["prompt"]),
        "Properties": record({"default_generation_settings": OBJECT, "total_slots": INTEGER}),
        "Slots": listing(record({"id": INTEGER, "n_ctx": INTEGER, "is_processing": BOOLEAN})),
        "Done": OBJECT,
        "Adapters": listing(record({"id": INTEGER, "path": STRING, "scale": NUMBER})),
    }


def _sessions() -> dict[str, Schema]:
    session = record(
        {
            "id": STRING,
            "object": one_of_texts("session"),
            "created": INTEGER,
            "last_used": INTEGER,
            "model": STRING,
            "turns": INTEGER,
            "tokens": said(INTEGER, "Of the conversation, when its last reply had ended."),
            "parent": said(_MAYBE_TEXT, "The session that it was forked from."),
            "busy": said(BOOLEAN, "A reply is being written."),
            "tokens_in_memory": INTEGER,
            "saved": said(BOOLEAN, "It is on the disk."),
            "tokens_saved": said(INTEGER, "Of these, those that are on the disk."),
        },
        ["id", "object", "created", "last_used", "model", "turns", "tokens"],
    )
    return {
        "Session": session,
        "SessionList": record({"data": listing(reference("Session"))}, ["data"]),
        "DeletedSession": _deleted("session.deleted"),
        **_snapshots(),
    }


def _snapshots() -> dict[str, Schema]:
    snapshot = record(
        {
            "object": one_of_texts("session.snapshot"),
            "name": STRING,
            "session": STRING,
            "model": STRING,
            "tokens": INTEGER,
            "bytes": INTEGER,
            "key": said(STRING, "A digest of the tokens and of every setting they depend on."),
            "created": INTEGER,
            "last_used": INTEGER,
            "status": one_of_texts("confirmed", "prepared"),
        },
        ["object", "name", "session", "model", "tokens", "bytes", "key", "status"],
    )
    every = {
        "data": listing(reference("Snapshot")),
        "slots": said(INTEGER, "Snapshots that the key may keep."),
        "slots_used": INTEGER,
        "bytes": said(INTEGER, "Bytes that they may take."),
        "bytes_used": INTEGER,
    }
    name = {"name": STRING}
    return {
        "Snapshot": snapshot,
        "SnapshotList": record(every, [*every]),
        "DeletedSnapshot": record({**name, "deleted": BOOLEAN}, ["name", "deleted"]),
        "AbortedSnapshot": record({**name, "aborted": BOOLEAN}, ["name", "aborted"]),
    }
