"""The paths of the page."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from allmetal import __version__
from allmetal.engine.async_engine import AsyncEngine
from allmetal.platform.evidence import of_plugins, read_evidence, shipped
from allmetal.platform.matrix import matrix, to_json
from allmetal.server.responses import JSON
from allmetal.server.state import state_of

PAGE = Path(__file__).parent / "page"
# Nothing but its own files: a text that a model wrote can load or run nothing.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-cache",  # asked for again each time, and answered by 304
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Files(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_HEADERS)
        return response


def routes() -> list[BaseRoute]:
    return [
        Route("/", page),
        Mount("/ui", _Files(directory=PAGE)),
        Route("/v1/info", info),
        Route("/v1/matrix", support),
    ]


async def page(_: Request) -> Response:
    return FileResponse(PAGE / "index.html", headers=_HEADERS)


async def info(request: Request) -> Response:
    """What a front end must know before it asks: lengths, sampling, whether it is a chat model."""
    state = state_of(request)
    engine = state.engine
    plan = engine.plan
    return JSON(
        {
            "model": state.model_name,
            "version": __version__,
            "created": state.created,
            "task": plan.model.task,
            "chat": engine.tokenizer.chat_template is not None,
            "max_model_len": engine.ready.max_model_len,
            "max_num_seqs": plan.max_num_seqs,
            "cache": _cache(engine),
            "model_type": plan.model.model_type,
            "num_layers": plan.model.num_layers,
            "hidden_size": plan.model.hidden_size,
            "vocab_size": plan.model.vocab_size,
            "parameter_bytes": plan.model.parameter_bytes,
            "dtype": plan.dtype,
            "kv_dtype": plan.kv_dtype,
            "quantization": plan.quantization,
            "platform": plan.platform,
            "device": plan.device.name,
            "sampling_defaults": dict(state.sampling_defaults),
        }
    )


async def support(request: Request) -> Response:
    """What `allmetal matrix --format json` prints on this machine."""
    return JSON(await state_of(request).engine.in_thread(_matrix))


def _cache(engine: AsyncEngine) -> Mapping[str, int]:
    return {"blocks": engine.ready.num_blocks, "block_size": engine.ready.block_size}


@cache
def _matrix() -> Mapping[str, Any]:
    return to_json(matrix(evidence=[*read_evidence(shipped()), *of_plugins()]))
