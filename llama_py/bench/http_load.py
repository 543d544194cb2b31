"""Requests over HTTP, timed: what a client of an OpenAI-compatible server sees.

Each stream has a thread and a connection of its own, and keeps the bytes that arrive with their
times. All else is done when the stream has ended, HTTP's own framing too, so that a client takes
little of the processor that a server is measured on.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar
from urllib.parse import urlsplit

from llama_py.errors import ParameterError

__all__ = ["Endpoint", "Reply", "closed_loop", "in_threads", "open_loop", "percentile", "together"]

T = TypeVar("T")

#: Seconds without a byte after which a stream is given up.
_SILENCE = 600.0


@dataclass(slots=True)
class Reply:
    """One streamed reply.

    Attributes:
        begun, first, ended: times of ``time.perf_counter()``: asked, first text, last byte.
        times: of each event with text.
        text: of the whole reply.
        choices: of each token, if ``logprobs`` and ``top_logprobs=2`` were asked for: its text, and
            the difference of the log-probabilities of the two likeliest.
        tokens, prompt_tokens, cached_tokens: as the server counted them.
        headers: of the response, by lower-case names.
        error: what went wrong, or empty.
    """

    begun: float
    first: float = 0.0
    ended: float = 0.0
    times: list[float] = field(default_factory=list)
    text: str = ""
    choices: list[tuple[str, float]] = field(default_factory=list)
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def first_token_seconds(self) -> float:
        """From asking to the first text."""
        return self.first - self.begun

    @property
    def seconds(self) -> float:
        """From asking to the end."""
        return self.ended - self.begun

    @property
    def gaps(self) -> list[float]:
        """Seconds between one event and the next."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


class Endpoint:
    """An OpenAI-compatible server.

    Args:
        base_url: such as ``http://127.0.0.1:8080``, with or without ``/v1``.
        key: sent as a bearer token, unless it is empty.
        model: named in requests.
    """

    def __init__(self, base_url: str, key: str = "", model: str = "default") -> None:
        parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ParameterError(f"--base-url {base_url}: expected http://HOST:PORT")
        self._https = parts.scheme == "https"
        self._address = (parts.hostname, parts.port or (443 if self._https else 80))
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self.model = model

    @property
    def address(self) -> str:
        """Host and port."""
        return "{}:{}".format(*self._address)

    def ask(self, method: str, path: str) -> tuple[int, bytes]:
        """Status and body of a request that has none."""
        connection = self._connect()
        try:
            connection.request(method, self._prefix + path, headers=self._headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Reply:
        """A streamed reply to a conversation."""
        return self.stream("/v1/chat/completions", self._body(messages=list(messages), **options))

    def complete(self, prompt: Any, **options: Any) -> Reply:
        """A streamed continuation of a text, or of tokens."""
        return self.stream("/v1/completions", self._body(prompt=prompt, **options))

    def _body(self, **options: Any) -> dict[str, Any]:
        usage = {"include_usage": True}
        return {"model": self.model, "stream": True, "stream_options": usage, **options}

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        return kind(*self._address, timeout=_SILENCE)

    def stream(self, path: str, body: Mapping[str, Any]) -> Reply:
        """A streamed reply of OpenAI's two dialects, or of Anthropic's."""
        content = json.dumps(body)
        reply = Reply(time.perf_counter())
        lines: list[tuple[float, bytes]] = []
        connection = self._connect()
        try:
            connection.request("POST", self._prefix + path, content, self._headers)
            response = connection.getresponse()
            reply.headers = {name.lower(): value for name, value in response.getheaders()}
            if response.status != 200:
                reply.error = f"{response.status}: {response.read(400).decode('utf-8', 'replace')}"
            else:
                lines = _lines(response)
        except (OSError, http.client.HTTPException) as error:
            reply.error = f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        reply.ended = time.perf_counter()
        _read(reply, lines)
        return reply


def _lines(response: http.client.HTTPResponse) -> list[tuple[float, bytes]]:
    """The lines of a stream, each with the time when its last byte was there."""
    if not response.chunked:
        return [(time.perf_counter(), line) for line in response if len(line) > 2]
    arrivals = _arrivals(response)
    ends = [*accumulate(len(data) for _, data in arrivals)]
    lines: list[tuple[float, bytes]] = []
    rest = b""
    for end, payload in _chunks(b"".join(data for _, data in arrivals)):
        when = arrivals[bisect_left(ends, end)][0]
        *whole, rest = (rest + payload).split(b"\n")
        lines += [(when, line) for line in whole if len(line) > 1]
    return lines


def _arrivals(response: http.client.HTTPResponse) -> list[tuple[float, bytes]]:
    """What arrives, as it arrives, up to and with the chunk that ends a chunked body."""
    arrivals: list[tuple[float, bytes]] = []
    read, now, tail = response.fp.read1, time.perf_counter, b"\r\n"
    while not tail.endswith(b"\r\n0\r\n\r\n"):
        data = read(65536)
        arrivals.append((now(), data))
        if not data:
            raise http.client.IncompleteRead(tail)
        tail = tail[-7:] + data
    return arrivals


def _chunks(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Of a chunked body: where each chunk ends in it, and what it holds."""
    place = 0
    while True:
        line = body.index(b"\r\n", place)
        size = int(body[place:line].partition(b";")[0], 16)
        if not size:
            return
        end = line + 2 + size
        yield end, body[line + 2 : end]
        place = end + 2


def _read(reply: Reply, lines: Sequence[tuple[float, bytes]]) -> None:
    """Fill in what the events of a stream say."""
    parts: list[str] = []
    for when, line in lines:
        if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
            continue
        event = json.loads(line[5:])
        _note_end(reply, event)
        text = _typed_text(event) if "type" in event else _chunk_text(event)
        if text:
            parts.append(text)
            reply.times.append(when)
    reply.text = "".join(parts)
    # A reply without text has its end only.
    reply.first = reply.times[0] if reply.times else reply.ended


def _chunk_text(event: Mapping[str, Any]) -> str:
    """Of a chunk of chat completions, or of completions."""
    return "".join(_choice_text(choice) for choice in event.get("choices") or ())


def _choice_text(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta")
    if delta is None:
        return str(choice.get("text") or "")
    calls = "".join(
        str(call.get("function", {}).get("name") or "")
        + str(call.get("function", {}).get("arguments") or "")
        for call in delta.get("tool_calls") or ()
    )
    return str(delta.get("reasoning_content") or "") + str(delta.get("content") or "") + calls


def _typed_text(event: Mapping[str, Any]) -> str:
    """Of an event of the Responses or the Messages dialect."""
    kind, delta = event["type"], event.get("delta")
    if kind == "content_block_delta" and isinstance(delta, dict):
        return "".join(str(delta.get(key) or "") for key in ("text", "thinking", "partial_json"))
    if kind == "content_block_start":  # a call without arguments has no deltas
        return str(event["content_block"].get("name") or "")
    if kind.startswith("response.") and kind.endswith(".delta") and isinstance(delta, str):
        return delta
    if kind == "response.output_item.added":
        return str(event["item"].get("name") or "")
    return ""


def _note_end(reply: Reply, event: Mapping[str, Any]) -> None:
    """Errors, usage, and why it ended."""
    response = event.get("response") or event.get("message") or event
    error = event.get("error") or response.get("error")
    if error:
        reply.error = str(error.get("message", error) if isinstance(error, dict) else error)
    for usage in (event.get("usage"), response.get("usage")):
        _note_usage(reply, usage or {})
    for choice in event.get("choices") or ():
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
        for token in (choice.get("logprobs") or {}).get("content") or ():
            likeliest = [each["logprob"] for each in token.get("top_logprobs") or ()]
            margin = likeliest[0] - likeliest[1] if len(likeliest) > 1 else float("inf")
            reply.choices.append((token["token"], margin))
    if event.get("type") == "message_delta":
        reply.finish_reason = event["delta"].get("stop_reason") or reply.finish_reason
    if event.get("type") in ("response.completed", "response.incomplete"):
        reply.finish_reason = str(response.get("status"))


def _note_usage(reply: Reply, usage: Mapping[str, Any]) -> None:
    if "prompt_tokens" in usage:
        reply.tokens = usage.get("completion_tokens") or 0
        reply.prompt_tokens = usage["prompt_tokens"] or 0
        details = usage.get("prompt_tokens_details") or {}
        reply.cached_tokens = details.get("cached_tokens") or 0
    elif "cache_read_input_tokens" in usage:  # Anthropic's input is what was evaluated
        reply.tokens = usage.get("output_tokens") or 0
        reply.cached_tokens = usage["cache_read_input_tokens"] or 0
        made = usage.get("cache_creation_input_tokens") or 0
        reply.prompt_tokens = (usage.get("input_tokens") or 0) + made + reply.cached_tokens
    elif "input_tokens" in usage:
        reply.tokens = usage.get("output_tokens") or 0
        reply.prompt_tokens = usage["input_tokens"] or 0
        details = usage.get("input_tokens_details") or {}
        reply.cached_tokens = details.get("cached_tokens") or 0


# ---- load ------------------------------------------------------------------------------------

Ask = Callable[[int], Reply]


def together(ask: Callable[[int], T], count: int) -> list[T]:
    """``count`` requests at the same moment."""
    barrier = threading.Barrier(count)

    def one(number: int) -> T:
        barrier.wait()
        return ask(number)

    return in_threads(one, count)


def closed_loop(ask: Ask, count: int, concurrency: int) -> list[Reply]:
    """``count`` requests by clients of which each asks again when it has its reply."""
    numbers = iter(range(count))
    lock = threading.Lock()
    replies: list[Reply] = []

    def client(_: int) -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            replies.append(ask(number))

    in_threads(client, min(concurrency, count))
    return replies


def open_loop(ask: Ask, count: int, rate: float, seed: int = 1) -> list[Reply]:
    """``count`` requests that arrive whether or not others have ended.

    Args:
        rate: arrivals per second on average, at exponentially distributed intervals.
    """
    source = random.Random(seed)
    waits = [source.expovariate(rate) for _ in range(count)]
    start = time.perf_counter()

    def one(number: int) -> Reply:
        time.sleep(max(0.0, start + sum(waits[: number + 1]) - time.perf_counter()))
        return ask(number)

    return in_threads(one, count)


def in_threads(function: Callable[[int], T], count: int) -> list[T]:
    """What the function returns for 0, 1, ..., called in as many threads.

    Raises:
        BaseException: that of the first of them that failed, when all have ended.
    """
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(function, n) for n in range(count)]]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` (0 to 1) of the values do not exceed; NaN of none."""
    if not values:
        return float("nan")
    if len(values) == 1:
        return values[0]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[min(98, max(0, round(share * 100) - 1))]
