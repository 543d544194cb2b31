"""The table of errors: what each exception is to the clients of each dialect."""

from __future__ import annotations

import logging

import pytest

from llama_py.dialects.failures import (
    Failure,
    Kind,
    RequestError,
    anthropic_error,
    failure_of,
    openai_error,
)
from llama_py.errors import (
    CacheFullError,
    ClosedError,
    ContextOverflowError,
    DecodeError,
    GenerationTimeout,
    GrammarError,
    ParameterError,
    ParameterTypeError,
    QueueFullError,
    RequestCancelled,
    TemplateError,
    TokenizationError,
    UnknownParameterError,
)

INVALID = "invalid_request_error"
#: An exception, and then status, type and code for OpenAI's clients, status and type for
#: Anthropic's.
ROWS: list[tuple[BaseException, tuple[int, str, str], tuple[int, str]]] = [
    (RequestError(Kind.INVALID_JSON, "x"), (400, INVALID, "invalid_json"), (400, INVALID)),
    (
        RequestError(Kind.MISSING, "x", "messages"),
        (400, INVALID, "missing_required_parameter"),
        (400, INVALID),
    ),
    (ParameterTypeError("x"), (400, INVALID, "invalid_type"), (400, INVALID)),
    (ParameterError("x"), (400, INVALID, "invalid_value"), (400, INVALID)),
    (UnknownParameterError("x"), (400, INVALID, "unknown_parameter"), (400, INVALID)),
    (TemplateError("x"), (400, INVALID, "invalid_value"), (400, INVALID)),
    (GrammarError("x"), (400, INVALID, "invalid_value"), (400, INVALID)),
    (TokenizationError("x"), (400, INVALID, "invalid_value"), (400, INVALID)),
    (
        RequestError(Kind.MODEL_NOT_FOUND, "x"),
        (404, INVALID, "model_not_found"),
        (404, "not_found_error"),
    ),
    (
        RequestError(Kind.UNAUTHORIZED, "x"),
        (401, INVALID, "invalid_api_key"),
        (401, "authentication_error"),
    ),
    (
        RequestError(Kind.FORBIDDEN, "x"),
        (403, "permission_error", "permission_denied"),
        (403, "permission_error"),
    ),
    (RequestError(Kind.NOT_FOUND, "x"), (404, INVALID, "not_found"), (404, "not_found_error")),
    (RequestError(Kind.METHOD, "x"), (405, INVALID, "method_not_allowed"), (405, INVALID)),
    (
        ContextOverflowError(5009, 2048),
        (413, "exceed_context_size_error", "context_length_exceeded"),
        (400, INVALID),
    ),
    (
        RequestError(Kind.BODY_TOO_LARGE, "x"),
        (413, INVALID, "request_too_large"),
        (413, "request_too_large"),
    ),
    (
        QueueFullError("x"),
        (503, "server_error", "server_is_overloaded"),
        (529, "overloaded_error"),
    ),
    (
        RequestError(Kind.RATE_LIMIT, "x"),
        (429, "rate_limit_error", "rate_limit_exceeded"),
        (429, "rate_limit_error"),
    ),
    (ClosedError("x"), (503, "unavailable_error", "unavailable"), (529, "overloaded_error")),
    (RequestCancelled("x"), (503, "unavailable_error", "unavailable"), (529, "overloaded_error")),
    (GenerationTimeout("x"), (504, "timeout_error", "timeout"), (504, "timeout_error")),
    (CacheFullError("x"), (503, "server_error", "cache_full"), (529, "overloaded_error")),
    (DecodeError("x", -3), (500, "server_error", "server_error"), (500, "api_error")),
    (ValueError("x"), (500, "server_error", "server_error"), (500, "api_error")),
    (
        RequestError(Kind.NOT_IMPLEMENTED, "x"),
        (501, "not_supported_error", "not_implemented"),
        (501, "api_error"),
    ),
]


@pytest.mark.parametrize(("error", "openai", "anthropic"), ROWS, ids=lambda value: repr(value)[:50])
def test_each_row(
    error: BaseException, openai: tuple[int, str, str], anthropic: tuple[int, str]
) -> None:
    failure = failure_of(error)
    status, body, _ = openai_error(failure)
    told = body["error"]
    assert (status, told["type"], told["code"]) == openai
    assert {"message", "type", "param", "code"} <= told.keys()
    status, body, _ = anthropic_error(failure, "req_1")
    assert (status, body["error"]["type"]) == anthropic
    assert (body["type"], body["request_id"]) == ("error", "req_1")
    assert body["error"].keys() == {"type", "message"}


def test_the_table_is_complete() -> None:
    missing = {*Kind} - {failure_of(error).kind for error, _, _ in ROWS}
    for kind in missing:  # a kind that only one dialect or one module uses has a status as well
        assert openai_error(Failure(kind, "x"))[0] >= 400
        assert anthropic_error(Failure(kind, "x"))[0] >= 400


def test_the_words_of_an_overflow() -> None:
    """Every known client recognises one of the phrases in them."""
    status, body, _ = openai_error(failure_of(ContextOverflowError(5009, 2048, 2000)))
    assert status == 413
    assert body["error"] == {
        "message": "prompt is too long: 5009 tokens > 2000 maximum; it exceeds the context window "
        "of this model (exceeds the available context size)",
        "type": "exceed_context_size_error",
        "param": None,
        "code": "context_length_exceeded",
        "n_prompt_tokens": 5009,
        "n_ctx": 2048,
    }
    assert openai_error(failure_of(ContextOverflowError(9, 4)), overflow_status=400)[0] == 400


def test_a_bound_says_that_it_is_one() -> None:
    """A prompt that is much too long is not counted; clients must not take the bound for exact."""
    error = ContextOverflowError(3414, 2048, at_least=True)
    _, body, _ = openai_error(failure_of(error))
    assert body["error"]["at_least"] is True
    assert "it has at least 3414 tokens" in body["error"]["message"]
    assert (
        "it has at least 3414 tokens" in anthropic_error(failure_of(error))[1]["error"]["message"]
    )


def test_when_to_try_again() -> None:
    _, _, headers = openai_error(failure_of(QueueFullError("x")))
    assert headers == {"Retry-After": "1"}
    limited = RequestError(Kind.RATE_LIMIT, "x", retry_after=2.2)
    assert openai_error(limited.failure)[2] == anthropic_error(limited.failure)[2]
    assert openai_error(limited.failure)[2] == {"Retry-After": "3"}
    assert openai_error(Failure(Kind.UNAUTHORIZED, "x"))[2] == {"WWW-Authenticate": "Bearer"}
    assert openai_error(Failure(Kind.BODY_TOO_LARGE, "x"))[2] == {"Connection": "close"}


def test_what_nobody_foresaw_is_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    secret = "/home/somebody/models at 0x7f3a"
    with caplog.at_level(logging.ERROR, "llama_py.server"):
        failure = failure_of(OSError(secret))
    assert secret not in str(openai_error(failure)[1])
    assert secret in caplog.text


def test_a_long_message_is_cut() -> None:
    assert len(failure_of(TemplateError("x" * 100_000)).message) < 2000
