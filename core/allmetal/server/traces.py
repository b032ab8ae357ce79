"""OpenTelemetry: a span for each request, under the caller's where it sends `traceparent`.

The attributes are OpenTelemetry's for generative AI, and those of the field's engines for times.
Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allmetal import __version__
from allmetal.errors import ConfigError
from allmetal.server.timeline import Timeline

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

# Spans that cannot be delivered must not hold up the end of the server.
_LAST_SPANS_MS = 2000
_TIMEOUT_S = 5


class Traces:
    """An `Observer`.  Spans are sent by a thread; what cannot be delivered is dropped."""

    def __init__(self, endpoint: str, model: str) -> None:
        self._model = model
        self._provider = _provider(endpoint)
        self._tracer = self._provider.get_tracer("allmetal", __version__)

    def tokens(self, gap_s: float, number: int) -> None:
        """Told at the end."""

    def ended(self, timeline: Timeline) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {"traceparent": timeline.trace_parent}
        span = self._tracer.start_span(
            "llm_request",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            start_time=timeline.started_ns,
            attributes={k: v for k, v in self._attributes(timeline).items() if v is not None},
        )
        if timeline.error is not None:
            span.set_status(Status(StatusCode.ERROR, timeline.error))
        span.end(timeline.started_ns + int(timeline.e2e_s * 1e9))

    def _attributes(self, timeline: Timeline) -> dict[str, Any]:
        sampling = timeline.sampling
        return {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "allmetal",
            "gen_ai.request.model": self._model,
            "gen_ai.response.id": timeline.request_id,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.choice.count": sampling.n,
            "gen_ai.response.finish_reasons": timeline.finish_reasons,
            "gen_ai.usage.input_tokens": timeline.num_prompt,
            "gen_ai.usage.output_tokens": timeline.num_output,
            "gen_ai.usage.cache_read.input_tokens": timeline.num_cached,
            "gen_ai.latency.time_in_queue": timeline.queue_s,
            "gen_ai.latency.time_to_first_token": timeline.ttft_s,
            "gen_ai.latency.time_in_model_prefill": timeline.prefill_s,
            "gen_ai.latency.time_in_model_decode": timeline.decode_s,
            "gen_ai.latency.e2e": timeline.e2e_s,
            "http.request.header.x-request-id": timeline.name or None,
        }

    def close(self) -> None:
        self._provider.force_flush(_LAST_SPANS_MS)
        self._provider.shutdown()


def check_traces(endpoint: str | None) -> None:
    """Raises ConfigError if traces are wanted and cannot be sent."""
    if endpoint is not None:
        _provider(endpoint).shutdown()


def _provider(endpoint: str) -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"traces need a package that is not installed: {error.name}",
            hint='pip install "allmetal[otel]"',
        ) from None
    resource = Resource.create({"service.name": "allmetal", "service.version": __version__})
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    return provider
