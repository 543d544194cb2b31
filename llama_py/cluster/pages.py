"""``merged``: one page of metrics of those of all replicas, each sample with its replica's name."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

__all__ = ["merged"]


class _Pages(Collector):
    def __init__(self, families: dict[str, Metric]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._families.values()


def merged(pages: Iterable[tuple[str, bytes]]) -> bytes:
    """The page, in Prometheus' form.

    Args:
        pages: the name of each replica, and its page.
    """
    families: dict[str, Metric] = {}
    for name, page in pages:
        for family in text_string_to_metric_families(page.decode()):
            known = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                labels = {**sample.labels, "replica": name}
                known.samples.append(sample._replace(labels=labels))
    registry = CollectorRegistry()
    registry.register(_Pages(families))
    return bytes(generate_latest(registry))
