"""Prometheus metrics, named as the field names them, under the prefix `allmetal:`.

Where several processes speak HTTP each keeps its counts in files that all of them can read, so that
whichever is asked tells the sum; what the engine counts is told by the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from allmetal.config import metrics_dir
from allmetal.engine import ipc
from allmetal.engine.engine import EngineStats
from allmetal.server.timeline import Timeline

Buckets: TypeAlias = tuple[float, ...]
# fmt: off
_SHORT_S: Buckets = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5,
    10, 20, 40, 80,
)
_LONG_S: Buckets = (
    0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.15, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40,
    50, 60, 120, 240, 480, 960, 1920, 7680,
)
_TOKENS: Buckets = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000,
)
# fmt: on

_HISTOGRAMS: dict[str, tuple[str, Buckets]] = {
    "time_to_first_token_seconds": ("from arrival to first token", _LONG_S),
    "inter_token_latency_seconds": ("between tokens of a sequence", _SHORT_S),
    "request_time_per_output_token_seconds": ("mean of a request, first token aside", _SHORT_S),
    "e2e_request_latency_seconds": ("from arrival to last token", _LONG_S),
    "request_queue_time_seconds": ("from arrival in the engine to the first step", _LONG_S),
    "request_prefill_time_seconds": ("from the first step to the first token", _LONG_S),
    "request_decode_time_seconds": ("from the first token to the last", _LONG_S),
    "request_inference_time_seconds": ("from the first step to the last token", _LONG_S),
    "request_prompt_tokens": ("prompt length", _TOKENS),
    "request_generation_tokens": ("output length", _TOKENS),
    "request_params_max_tokens": ("max_tokens, as asked for", _TOKENS),
    "request_params_n": ("n, as asked for", (1, 2, 5, 10, 20)),
}
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

    def __init__(self, model: str, ready: ipc.Ready) -> None:
        self._model = model
        self._ready = ready
        self.stats: EngineStats | None = None

    def collect(self) -> Iterable[Metric]:
        info = {
            "block_size": str(self._ready.block_size),
            "num_blocks": str(self._ready.num_blocks),
            "cache_dtype": self._ready.plan.kv_dtype,
            "enable_prefix_caching": str(self._ready.plan.prefix_caching),
        }
        config = GaugeMetricFamily(
            "allmetal:cache_config_info", "how the cache is set up", labels=[*info]
        )
        config.add_metric([*info.values()], 1)
        yield config
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
    """What this server measures, in a registry of its own.  An `Observer`."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, model: str, ready: ipc.Ready) -> None:
        own = CollectorRegistry()
        self._model = model
        self._histograms = {
            name: Histogram(
                f"allmetal:{name}", doc, ["model_name"], buckets=buckets, registry=own
            ).labels(model)
            for name, (doc, buckets) in _HISTOGRAMS.items()
        }
        self._itl = self._histograms["inter_token_latency_seconds"]
        self._success = Counter(
            "allmetal:request_success",
            "sequences that ended, by reason",
            ["model_name", "finished_reason"],
            registry=own,
        )
        self._http = Counter(
            "allmetal:http_requests",
            "answers, by path, method and status",
            ["handler", "method", "status"],
            registry=own,
        )
        self._registry = own
        if (folder := metrics_dir()) is not None:
            self._registry = CollectorRegistry()
            MultiProcessCollector(self._registry, folder)  # type: ignore[no-untyped-call]
        self._engine = _EngineCollector(model, ready)
        self._registry.register(self._engine)

    def render(self, stats: EngineStats | None) -> bytes:
        """The text exposition format; `stats` None leaves the last known engine numbers."""
        if stats is not None:
            self._engine.stats = stats
        return generate_latest(self._registry)

    def answered(self, handler: str, method: str, status: int) -> None:
        self._http.labels(handler, method, str(status)).inc()

    def tokens(self, gap_s: float, number: int) -> None:
        for _ in range(number):
            self._itl.observe(gap_s)

    def ended(self, timeline: Timeline) -> None:
        for reason in timeline.finish_reasons:
            self._success.labels(self._model, reason).inc()
        if timeline.num_prompt == 0:  # it never came to computing
            return
        inference = None
        if timeline.prefill_s is not None and timeline.decode_s is not None:
            inference = timeline.prefill_s + timeline.decode_s
        values = {
            "time_to_first_token_seconds": timeline.ttft_s,
            "request_time_per_output_token_seconds": timeline.tpot_s,
            "e2e_request_latency_seconds": timeline.e2e_s,
            "request_queue_time_seconds": timeline.queue_s,
            "request_prefill_time_seconds": timeline.prefill_s,
            "request_decode_time_seconds": timeline.decode_s,
            "request_inference_time_seconds": inference,
            "request_prompt_tokens": timeline.num_prompt,
            "request_params_max_tokens": timeline.sampling.max_tokens,
            "request_params_n": timeline.sampling.n,
        }
        for name, value in values.items():
            if value is not None:
                self._histograms[name].observe(value)
        for length in timeline.output_lengths:
            self._histograms["request_generation_tokens"].observe(length)
