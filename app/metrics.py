"""What Prometheus scrapes: the observer that counts. Labels are words of the service's own, never ids."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from app.domain.observer import Observer, TokenPurpose, UpstreamOperation, UpstreamOutcome

# Where several workers keep their figures in files, so that a scrape of any one of them tells of all.
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def forget_process(pid: int) -> None:
    """Drop what a worker that died had at that moment, such as connections; what it had counted stays."""
    mark_process_dead(pid, os.environ[SHARED_FOLDER])  # type: ignore[no-untyped-call]


class Metrics(Observer):
    """The figures of one application, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"turnkeeper_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"turnkeeper_{name}", text, labels, registry=registry, multiprocess_mode="livesum")

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"turnkeeper_{name}_seconds", text, labels, registry=registry, buckets=_SECONDS)

        self._requests = counter("requests", "Requests that were answered.", "method", "route", "status")
        self._latency = histogram("request", "Time until the end of the answer, streams included.", "method", "route")
        self._in_flight = gauge("requests_in_flight", "Requests that are being answered.")
        self._first_byte = histogram("upstream_first_byte", "Time until the upstream began to answer.", "operation")
        self._upstream = histogram("upstream", "Time until the end of an attempt at the upstream.", "operation")
        self._attempts = counter("upstream_attempts", "Attempts at the upstream.", "operation", "outcome")
        self._tokens = counter(
            "tokens",
            "Tokens of completions: as the upstream reported them, or counted.",
            "purpose",
            "kind",
            "source",
        )
        self._compactions = counter("compactions", "Compactions that were tried.", "outcome")
        self._orphans = counter("orphans_left_out", "Messages that were left out of prompts as broken tool calls.")
        self._pool_size = gauge("pool_size", "Database connections that a pool may open.", "pool")
        self._pool_in_use = gauge("pool_in_use", "Database connections in use.", "pool")
        self._pool_waiting = gauge("pool_waiting", "Requests that wait for a database connection.", "pool")
        self._pool_timeouts = counter("pool_timeouts", "Waits for a database connection in vain (503).", "pool")
        self._pools: dict[tuple[int, str], Gauge] = {}
        self._sweeps = counter("sweeps", "Rounds of the sweeper.", "outcome")
        self._swept = counter("swept_rows", "Rows that the sweeper removed.")

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The figures in the format that a scraper asks for, and the media type of it; of all workers, if several."""
        encode, media_type = choose_encoder(accept)
        return encode(self._collected()), media_type

    def _collected(self) -> CollectorRegistry:
        if folder := os.environ.get(SHARED_FOLDER):
            shared = CollectorRegistry()
            MultiProcessCollector(shared, path=folder)  # type: ignore[no-untyped-call]
            return shared
        return self.registry

    def request_began(self) -> None:
        self._in_flight.inc()

    def request_ended(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else "other"
        self._in_flight.dec()
        self._requests.labels(method, route, str(status or "none")).inc()
        self._latency.labels(method, route).observe(seconds)

    def upstream_answered(self, operation: UpstreamOperation, seconds: float) -> None:
        self._first_byte.labels(operation).observe(seconds)

    def upstream_ended(self, operation: UpstreamOperation, outcome: UpstreamOutcome, seconds: float) -> None:
        self._attempts.labels(operation, outcome).inc()
        self._upstream.labels(operation).observe(seconds)

    def tokens_used(self, purpose: TokenPurpose, prompt: int, completion: int, *, reported: bool) -> None:
        source = "reported" if reported else "counted"
        self._tokens.labels(purpose, "prompt", source).inc(prompt)
        self._tokens.labels(purpose, "completion", source).inc(completion)

    def compaction_ended(self, outcome: str) -> None:
        self._compactions.labels(outcome).inc()

    def orphans_left_out(self, messages: int) -> None:
        self._orphans.inc(messages)

    def pool_sized(self, pool: str, size: int) -> None:
        self._pool_size.labels(pool).set(size)

    def pool_waiting(self, pool: str, more: int) -> None:
        self._of_pool(self._pool_waiting, pool).inc(more)

    def pool_in_use(self, pool: str, more: int) -> None:
        self._of_pool(self._pool_in_use, pool).inc(more)

    def _of_pool(self, gauge: Gauge, pool: str) -> Gauge:
        """Kept, as it is asked for four times a statement: looking it up took 10 of 14 µs."""
        key = (id(gauge), pool)
        if key not in self._pools:
            self._pools[key] = gauge.labels(pool)
        return self._pools[key]

    def pool_timed_out(self, pool: str) -> None:
        self._pool_timeouts.labels(pool).inc()

    def swept(self, rows: int | None) -> None:
        self._sweeps.labels("failed" if rows is None else "done").inc()
        self._swept.inc(rows or 0)
