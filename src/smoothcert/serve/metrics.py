"""The metrics of a service, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from smoothcert.serve.service import Service

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SHARES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)


class Metrics:
    """Counts what a service does; its engines are read when the metrics are."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.registry = CollectorRegistry()
        place: dict[str, Any] = {"registry": self.registry}
        self._requests = Counter("smoothcert_requests", "Requests by path and status.", ["path", "status"], **place)
        self._answers = Counter("smoothcert_answers", "Answers by outcome.", ["model", "outcome"], **place)
        self._abstained = Counter("smoothcert_abstentions", "Answers without a class.", ["model"], **place)
        self._late = Counter("smoothcert_deadline_misses", "Answers over 20 ms after the deadline.", ["model"], **place)
        self._seconds = Histogram("smoothcert_seconds", "Time of an answer.", ["model"], buckets=_SECONDS, **place)
        scales = {each.smoothed.noise.scale for each in service.served.values()}
        buckets = sorted({round(share * scale, 6) for share in _SHARES for scale in scales})
        self._radius = Histogram("smoothcert_radius", "Proved radii.", ["model"], buckets=buckets, **place)
        self.registry.register(self)

    def requested(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def answered(self, model: str, answer: dict[str, Any], late: bool) -> None:
        self._answers.labels(model, answer.get("outcome", "predicted")).inc()
        self._seconds.labels(model).observe(answer["seconds"]["total"])
        if "radius" in answer:
            self._radius.labels(model).observe(answer["radius"])
        if answer["label"] < 0:
            self._abstained.labels(model).inc()
        if late:
            self._late.labels(model).inc()

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers of the engines, as the registry asks for them."""
        gauges = {
            name: GaugeMetricFamily(f"smoothcert_{name}", text, labels=["model"])
            for name, text in (
                ("pending", "Requests that wait."),
                ("running", "Requests under work."),
                ("samples_per_second", "Samples in the last busy seconds."),
                ("batch_occupancy", "Share of the rows of batches that were used."),
            )
        }
        counters = {
            name: CounterMetricFamily(f"smoothcert_{name}", text, labels=["model"])
            for name, text in (
                ("samples", "Samples classified."),
                ("cancelled", "Requests that were cancelled."),
                ("failed", "Requests that failed."),
            )
        }
        for name, served in self._service.served.items():
            now = served.engine.statistics()
            gauges["pending"].add_metric([name], now["pending"])
            gauges["running"].add_metric([name], now["running"])
            gauges["samples_per_second"].add_metric([name], now["rate"])
            gauges["batch_occupancy"].add_metric([name], now["rows"] / now["capacity"] if now["capacity"] else 0.0)
            counters["samples"].add_metric([name], now["rows"])
            counters["cancelled"].add_metric([name], now["cancelled"])
            counters["failed"].add_metric([name], now["failed"])
        yield from (*gauges.values(), *counters.values())

    def text(self) -> bytes:
        return generate_latest(self.registry)
