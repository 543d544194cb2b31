"""``ServerMetrics``: what is counted, in the form of Prometheus.

The engines count by themselves; their numbers are read when somebody asks, and those of a model go
on when it is loaded again. Only HTTP requests are counted here. The ``llamacpp:`` names are those
of llama-server, so that its dashboards work; where one model is served, they have no label, as
there. Those with ``vllm:`` are what routers in front of several servers read: vLLM's production
stack, and the endpoint picker of llm-d and of Kubernetes' inference gateways. Labels come from the
configuration and from routes, never from what clients send, so that there are only so many of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from llama_py.api.facts import EngineReport
from llama_py.engine.metrics import Metrics
from llama_py.server.lifecycle import Lifecycle
from llama_py.server.pool.pool import ModelPool
from llama_py.server.request_record import RequestRecord

__all__ = ["ServerMetrics"]

_NO_ROUTE = "other"
_NATIVE = "llamacpp:"
#: llama-server calls it a counter, although it is a maximum; the library adds ``_total`` to those.
_LONGEST = b"# TYPE llamacpp:n_tokens_max "
#: Libraries before 0.23 have no name for it.
_PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"
#: Clients may send any word as a method.
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS"})


class ServerMetrics:
    """Counts what happens, and writes it in Prometheus' form.

    Args:
        lifecycle: knows how many requests are in flight.
        models: knows which models came and went, and what they did.

    Attributes:
        since: when it began to count, in seconds since 1970.
    """

    def __init__(self, lifecycle: Lifecycle, models: ModelPool) -> None:
        self.since = int(time.time())
        self._registry = CollectorRegistry()
        self._http = _Http(lifecycle)
        self._keys = _Keys()
        for collector in (self._http, self._keys, _Models(models), _Engines(models)):
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)

    def count(self, record: RequestRecord) -> None:
        """Count a request that is over."""
        known = record.route and record.method in _METHODS
        method = record.method if known else _NO_ROUTE
        self._http.counts[method, record.route or _NO_ROUTE, str(record.status)] += 1
        self._keys.count(record)

    def page(self) -> tuple[bytes, str]:
        """The page for a scraper, and its content type.

        It is always the plain text. In OpenMetrics' form, which Prometheus asks for first, newer
        versions of the library write ``llamacpp_`` where dashboards look for ``llamacpp:``.
        """
        page = generate_latest(self._registry).replace(_LONGEST + b"gauge", _LONGEST + b"counter")
        return page, _PLAIN_TEXT


class _Collector(Collector):
    """Nothing is read when it is registered: that would be too early."""

    def describe(self) -> Iterator[Metric]:
        return iter(())


class _Http(_Collector):
    """HTTP requests, by method, route and status."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self._lifecycle = lifecycle

    def collect(self) -> Iterator[Metric]:
        name, labels = "llama_py_http_requests", ["method", "path", "status"]
        family = CounterMetricFamily(name, "HTTP requests by route and status.", labels=labels)
        for values, count in [*self.counts.items()]:
            family.add_metric(values, count)
        yield family
        help_ = "HTTP requests in flight, without probes."
        in_flight = self._lifecycle.in_flight
        yield GaugeMetricFamily("llama_py_http_requests_in_flight", help_, value=in_flight)


class _Keys(_Collector):
    """Tokens and requests of each key, by its name; those without a key count as one."""

    def __init__(self) -> None:
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._requests: Counter[str] = Counter()

    def count(self, record: RequestRecord) -> None:
        if record.prompt_tokens is None:
            return
        name = record.caller.name
        self._requests[name] += 1
        self._tokens[name, "prompt"] += record.prompt_tokens
        self._tokens[name, "cached"] += record.cached_tokens or 0
        self._tokens[name, "generated"] += record.generated_tokens or 0

    def collect(self) -> Iterator[Metric]:
        help_ = "Tokens of the requests of a key; cached ones are among those of prompts."
        tokens = CounterMetricFamily("llama_py_key_tokens", help_, labels=["key", "kind"])
        for values, count in [*self._tokens.items()]:
            tokens.add_metric(values, count)
        yield tokens
        help_ = "Requests of a key that a model worked on."
        requests = CounterMetricFamily("llama_py_key_requests", help_, labels=["key"])
        for name, count in [*self._requests.items()]:
            requests.add_metric([name], count)
        yield requests


class _Models(_Collector):
    """Models that came into memory, and left it."""

    def __init__(self, models: ModelPool) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        pool, counted = self._models, self._models.counters
        counters = {
            "loads": ("Models that were loaded.", counted.loads),
            "load_seconds": ("Time that took.", counted.load_seconds),
            "load_failures": ("Models that could not be loaded.", counted.failures),
            "unloads": ("Models that were unloaded.", counted.unloads),
            "evictions": ("... to make room for others.", counted.evictions),
            "wait_timeouts": ("Requests that waited for a model in vain.", counted.timeouts),
        }
        for name, (help_, value) in counters.items():
            yield CounterMetricFamily(f"llama_py_model_{name}", help_, value=value)
        yield GaugeMetricFamily("llama_py_models_loaded", "In memory.", value=len(pool.loaded))
        help_ = "Times that the own process of a model died and was started again."
        restarts = CounterMetricFamily(
            "llama_py_model_process_restarts", help_, labels=["model_name"]
        )
        for model in pool.models:
            restarts.add_metric([model.id], model.restarts)
        yield restarts
        help_ = "Requests that wait for a model."
        yield GaugeMetricFamily("llama_py_model_requests_waiting", help_, value=pool.waiting)


class _Engines(_Collector):
    """Reads the numbers of engines, in any thread."""

    def __init__(self, models: ModelPool) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Any] = {}
        one = len(self._models.models) == 1
        for model in self._models.models:
            if (counted := model.counted) is None:
                continue
            metrics, report = counted
            for name, kind, help_, value in (*_numbers(metrics), *_states(report)):
                plain = one and name.startswith(_NATIVE)
                family = families.get(name)
                if family is None:
                    labels = [] if plain else ["model_name"]
                    family = families[name] = kind(name, help_, labels=labels)
                family.add_metric([] if plain else [model.id], value)
            if report is not None:
                _add_devices(families, model.id, report)
            _add_ends(families, model.id, metrics)
            _add_histograms(families, model.id, metrics)
        yield from families.values()


def _add_devices(families: dict[str, Any], model: str, report: EngineReport) -> None:
    name = "llama_py_device_memory_bytes"
    for each in report.devices:
        if name not in families:
            help_ = "Memory that a model and its context take."
            labels = ["model_name", "device", "what"]
            families[name] = GaugeMetricFamily(name, help_, labels=labels)
        for what in ("weights", "cells", "buffers"):
            families[name].add_metric([model, each.device, what], getattr(each, what))


def _numbers(metrics: Metrics) -> Iterator[tuple[str, type[Any], str, float]]:
    counter, gauge = CounterMetricFamily, GaugeMetricFamily
    wrote = metrics.token_seconds.total
    streams = metrics.batch_streams
    alone = metrics.steps - streams.count  # steps of a single stream are not among them
    yield "llamacpp:prompt_tokens", counter, "Prompt tokens evaluated.", metrics.evaluated
    yield "llamacpp:prompt_tokens_cached", counter, "Prompt tokens reused.", metrics.reused
    yield "llamacpp:prompt_seconds", counter, "Prompt evaluation time.", metrics.prompt_seconds
    yield "llamacpp:tokens_predicted", counter, "Tokens generated.", metrics.generated
    yield "llamacpp:tokens_predicted_seconds", counter, "Generation time.", wrote
    yield "llamacpp:n_decode", counter, "Calls of llama_decode.", metrics.steps
    yield (
        "llamacpp:prompt_tokens_seconds",
        gauge,
        "Average prompt throughput in tokens/s.",
        _ratio(metrics.evaluated, metrics.prompt_seconds),
    )
    yield (
        "llamacpp:predicted_tokens_seconds",
        gauge,
        "Average generation throughput in tokens/s.",
        _ratio(metrics.token_seconds.count, wrote),
    )
    yield (
        "llamacpp:n_busy_slots_per_decode",
        gauge,
        "Average number of requests in a call of llama_decode.",
        _ratio(streams.total + alone, metrics.steps),
    )
    yield "llamacpp:n_tokens_max", gauge, "Most tokens of a request so far.", metrics.longest
    help_ = "Tokens that were drafted."
    yield "llamacpp:spec_decode_num_draft_tokens", counter, help_, metrics.drafted
    help_ = "Drafted tokens that were right."
    yield "llamacpp:spec_decode_num_accepted_tokens", counter, help_, metrics.accepted
    help_ = "Drafts that were verified."
    yield "llamacpp:spec_decode_num_drafts", counter, help_, metrics.drafts
    total, help_ = metrics.prompt_tokens, "Prompt tokens looked for in the cache."
    yield "llama_py_prefix_cache_queries", counter, help_, total
    yield "llama_py_prefix_cache_hits", counter, "... and found there.", metrics.reused
    for name in ("vllm:prefix_cache", "vllm:gpu_prefix_cache"):  # the newer name and the older one
        yield f"{name}_queries", counter, help_, total
        yield f"{name}_hits", counter, "... and found there.", metrics.reused
    help_ = "Requests that had to begin again, because there was no room."
    yield "llama_py_num_preemptions", counter, help_, metrics.preempted
    yield "llama_py_draft_tokens", counter, "Tokens that were drafted.", metrics.drafted
    yield "llama_py_draft_tokens_accepted", counter, "... and were right.", metrics.accepted
    help_ = "Time spent drafting."
    yield "llama_py_draft_seconds", counter, help_, metrics.draft_seconds


def _states(report: EngineReport | None) -> Iterator[tuple[str, type[Any], str, float]]:
    """How it is now; a model that is not in memory does nothing."""
    running = waiting = media = 0
    used = 0.0
    if report is not None:
        running, waiting = report.running, report.waiting
        used, media = _ratio(report.cells_used, report.cells), report.media_bytes
    gauge = GaugeMetricFamily
    yield "llamacpp:requests_processing", gauge, "Requests that have a place.", running
    yield "llamacpp:requests_deferred", gauge, "Requests that wait for one.", waiting
    yield "vllm:num_requests_running", gauge, "Requests that have a place.", running
    yield "vllm:num_requests_waiting", gauge, "Requests that wait for one.", waiting
    help_ = "Bytes kept of pictures and sounds (media_cache_bytes)."
    yield "llama_py_media_cache_bytes", gauge, help_, media
    for name in ("llama_py_kv", "vllm:kv", "vllm:gpu"):
        yield f"{name}_cache_usage_perc", gauge, "Share of the context in use; 1 is all.", used


def _ratio(amount: float, of: float) -> float:
    return amount / of if of > 0 else 0.0


def _add_ends(families: dict[str, Any], model: str, metrics: Metrics) -> None:
    ends = {
        "stop": metrics.stopped,
        "length": metrics.finished - metrics.stopped,
        "abort": metrics.cancelled,
        "error": metrics.failed,
    }
    name, labels = "llama_py_request_success", ["model_name", "finished_reason"]
    family = families.setdefault(
        name, CounterMetricFamily(name, "Requests by how they ended.", labels=labels)
    )
    for reason, count in ends.items():
        family.add_metric([model, reason], count)


def _add_histograms(families: dict[str, Any], model: str, metrics: Metrics) -> None:
    named = {
        "llama_py_time_to_first_token_seconds": (
            "From a request to its first token.",
            metrics.first_token_seconds,
        ),
        "llama_py_inter_token_latency_seconds": (
            "Between two tokens of a reply.",
            metrics.token_seconds,
        ),
        "llama_py_e2e_request_latency_seconds": (
            "From a request to the end of its reply.",
            metrics.request_seconds,
        ),
        "llama_py_request_queue_time_seconds": (
            "How long a request waited for a place.",
            metrics.queue_seconds,
        ),
    }
    for name, (help_, histogram) in named.items():
        family = families.setdefault(
            name, HistogramMetricFamily(name, help_, labels=["model_name"])
        )
        buckets, below = [], 0
        counts = [*histogram.counts]
        for bound, count in zip([*map(str, histogram.bounds), "+Inf"], counts, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric([model], buckets, histogram.total)
