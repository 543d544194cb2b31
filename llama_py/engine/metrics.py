"""``Metrics``: what the engine did, as counters and histograms that read as a dict."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from copy import copy
from typing import cast

from typing_extensions import TypedDict

__all__ = ["Histogram", "HistogramReport", "Metrics", "MetricsReport"]

#: Upper bounds of the buckets of a histogram of seconds.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Those of whole requests.
_LONG = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class HistogramReport(TypedDict):
    """How a value was distributed.

    Attributes:
        buckets: by upper bound (``"inf"`` for the last one), how many values lie between that and
            the bound before.
    """

    count: int
    mean: float
    max: float
    buckets: dict[str, int]


class MetricsReport(TypedDict):
    """Counters of the engine since it was loaded or reset.

    Attributes:
        requests, finished, cancelled, failed: requests by how they ended; ``stopped`` of the
            finished ones came to an end of their own, the others had no room for more.
        prompt_tokens: in all prompts; ``reused`` of them were in memory, ``evaluated`` were not.
        generated: sampled tokens.
        steps: calls of ``llama_decode``; ``decode_seconds`` is the time spent in them.
        sample_seconds: time spent choosing tokens.
        prompt_seconds: from a request's start to its first token, all requests together.
        preempted: times a request had to give its sequence back because cells ran out.
        longest: most tokens that a request had, prompt and reply.
        drafts: drafts that were verified; ``drafted`` is the number of their tokens, and
            ``accepted`` how many of these the model said as well.
        draft_seconds: time spent drafting.
        drafts_skipped: times that nothing was drafted, because it would not have paid.
        draft_errors: drafters that raised, or whose drafts could not be used.
        drafts_refused: requests that were to have drafts and had none, by the reason.
        queue_seconds, first_token_seconds, request_seconds: from when a request was submitted to
            when it got a place, its first token came, and it ended.
        token_seconds: between two tokens of a reply.
        batch_streams: requests that took part in a step.
    """

    requests: int
    finished: int
    cancelled: int
    failed: int
    stopped: int
    prompt_tokens: int
    reused: int
    evaluated: int
    generated: int
    steps: int
    preempted: int
    longest: int
    drafts: int
    drafted: int
    accepted: int
    drafts_skipped: int
    draft_errors: int
    drafts_refused: dict[str, int]
    draft_seconds: float
    decode_seconds: float
    sample_seconds: float
    prompt_seconds: float
    queue_seconds: HistogramReport
    first_token_seconds: HistogramReport
    token_seconds: HistogramReport
    request_seconds: HistogramReport
    batch_streams: HistogramReport


class Histogram:
    """Counts of values in buckets, their sum and their number.

    Attributes:
        bounds: upper bounds of the buckets; the last bucket has none.
        counts: one per bucket.
    """

    __slots__ = ("bounds", "count", "counts", "largest", "total")

    def __init__(self, bounds: Sequence[float] = _SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.total = 0.0
        self.largest = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.total += value
        if value > self.largest:
            self.largest = value

    def __add__(self, other: Histogram) -> Histogram:
        """The values of both, which have the same buckets."""
        both = Histogram(self.bounds)
        both.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        both.count, both.total = self.count + other.count, self.total + other.total
        both.largest = max(self.largest, other.largest)
        return both

    def as_dict(self) -> HistogramReport:
        """Number, mean, largest, and the buckets by upper bound."""
        labels = [*map(str, self.bounds), "inf"]
        return {
            "count": self.count,
            "mean": self.total / self.count if self.count else 0.0,
            "max": self.largest,
            "buckets": dict(zip(labels, self.counts, strict=True)),
        }


class Metrics:
    """Counts; attributes are plain numbers that the engine adds to (see ``MetricsReport``)."""

    def __init__(self) -> None:
        self.requests = self.finished = self.cancelled = self.failed = self.stopped = 0
        self.prompt_tokens = self.reused = self.evaluated = self.generated = 0
        self.steps = self.preempted = self.longest = 0
        self.drafts = self.drafted = self.accepted = self.drafts_skipped = self.draft_errors = 0
        self.drafts_refused: dict[str, int] = {}
        self.draft_seconds = 0.0
        self.decode_seconds = self.sample_seconds = self.prompt_seconds = 0.0
        self.queue_seconds = Histogram()
        self.first_token_seconds = Histogram()
        self.token_seconds = Histogram()
        self.request_seconds = Histogram(_LONG)
        self.batch_streams = Histogram(_STREAMS)

    def __add__(self, other: Metrics) -> Metrics:
        """The sum of both, as if one engine had counted."""
        both = Metrics()
        for name, value in vars(self).items():
            if not isinstance(value, dict):
                setattr(both, name, value + getattr(other, name))
        both.longest = max(self.longest, other.longest)
        both.drafts_refused = {**Counter(self.drafts_refused) + Counter(other.drafts_refused)}
        return both

    def as_dict(self) -> MetricsReport:
        """Everything, by name."""
        report = {
            name: value.as_dict() if isinstance(value, Histogram) else copy(value)
            for name, value in vars(self).items()
        }
        return cast(MetricsReport, report)
