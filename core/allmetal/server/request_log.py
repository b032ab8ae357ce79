"""A line with the figures of each request."""

from __future__ import annotations

import logging
from typing import Any

from allmetal.server.timeline import Timeline

log = logging.getLogger("allmetal.requests")


class RequestLog:
    """An `Observer`.  Seconds and numbers of tokens."""

    def tokens(self, gap_s: float, number: int) -> None:
        """Told at the end."""

    def ended(self, timeline: Timeline) -> None:
        figures: dict[str, Any] = {
            "id": timeline.request_id,
            "finish_reason": ",".join(timeline.finish_reasons),
            "prompt_tokens": timeline.num_prompt,
            "cached_tokens": timeline.num_cached,
            "output_tokens": timeline.num_output,
            "queue_s": timeline.queue_s,
            "ttft_s": timeline.ttft_s,
            "tpot_s": timeline.tpot_s,
            "e2e_s": timeline.e2e_s,
            "error": timeline.error,
        }
        shown = {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in figures.items()
            if value is not None
        }
        log.info("request", extra={"fields": shown})
