"""Prometheus metrics, named as the field names them, under the prefix `allmetal:`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from allmetal.engine.engine import EngineStats
from allmetal.request import RequestOutput

_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5, 10, 20, 40, 80, 160)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)

_GAUGES = {
    "num_requests_running": ("num_running", "sequences that take part in steps"),
    "num_requests_waiting": ("num_waiting", "sequences that wait for room"),
    "kv_cache_usage_perc": ("kv_usage", "share of cache blocks in use; 1 is all of them"),
}
_COUNTERS = {
    "num_preemptions": ("num_preemptions", "sequences put back to make room for others"),
    "prefix_cache_queries": ("prefix_queries", "prompt tokens looked up in the prefix cache"),
    "prefix_cache_hits": ("prefix_hits", "prompt tokens found in the prefix cache"),
    "prompt_tokens": ("prompt_tokens", "tokens of prompts taken in"),
    "generation_tokens": ("output_tokens", "tokens generated"),
}


class _EngineCollector(Collector):
    """The engine's own numbers, as of the last `stats`."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.stats: EngineStats | None = None

    def collect(self) -> Iterable[Metric]:
        if self.stats is None:
            return
        for name, (field, doc) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"allmetal:{name}", doc, labels=["model_name"])
            gauge.add_metric([self._model], getattr(self.stats, field))
            yield gauge
        for name, (field, doc) in _COUNTERS.items():
            counter = CounterMetricFamily(f"allmetal:{name}", doc, labels=["model_name"])
            counter.add_metric([self._model], getattr(self.stats, field))
            yield counter


class Metrics:
    """What the server measures, in a registry of its own."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._engine = _EngineCollector(model)
        self._registry.register(self._engine)
        self._model = model
        self._ttft = self._histogram("time_to_first_token_seconds", "from arrival to first token")
        self._itl = self._histogram("inter_token_latency_seconds", "between tokens of a sequence")
        self._e2e = self._histogram("e2e_request_latency_seconds", "from arrival to last token")
        self._prompt = self._histogram("request_prompt_tokens", "prompt length", _TOKENS)
        self._output = self._histogram("request_generation_tokens", "output length", _TOKENS)
        self._finished = Counter(
            "allmetal:request_success",
            "sequences that ended, by reason",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )

    def _histogram(self, name: str, doc: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        family = Histogram(
            f"allmetal:{name}", doc, ["model_name"], buckets=buckets, registry=self._registry
        )
        return family.labels(self._model)

    def render(self, stats: EngineStats | None) -> bytes:
        """The text exposition format; `stats` None leaves the last known engine numbers."""
        if stats is not None:
            self._engine.stats = stats
        return generate_latest(self._registry)

    async def observe(
        self, outputs: AsyncGenerator[RequestOutput, None]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Pass `outputs` through, taking their times.  Closing this closes `outputs`."""
        arrival = previous = time.perf_counter()
        num_tokens = 0
        try:
            async for output in outputs:
                now = time.perf_counter()
                known = sum(len(choice.token_ids) for choice in output.outputs)
                if num_tokens == 0 and known > 0:
                    self._ttft.observe(now - arrival)
                elif known > num_tokens:
                    # Tokens that came together are spaced evenly over the wait for them.
                    running = len(output.outputs)
                    each = (now - previous) * running / (known - num_tokens)
                    for _ in range(known - num_tokens):
                        self._itl.observe(each)
                if known > num_tokens:
                    previous, num_tokens = now, known
                if output.finished:
                    self._finish(output, now - arrival)
                yield output
        finally:
            await outputs.aclose()

    def _finish(self, output: RequestOutput, seconds: float) -> None:
        self._e2e.observe(seconds)
        self._prompt.observe(len(output.prompt_token_ids))
        for choice in output.outputs:
            self._output.observe(len(choice.token_ids))
            self._finished.labels(self._model, choice.finish_reason or "abort").inc()
