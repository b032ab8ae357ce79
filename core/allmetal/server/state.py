"""What every handler needs, made once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from allmetal.config import ServerConfig
from allmetal.engine.async_engine import AsyncEngine
from allmetal.engine.defaults import sampling_defaults
from allmetal.engine.output import Prompt
from allmetal.request import RequestOutput, SamplingParams
from allmetal.server.errors import ModelNotFoundError, StepFailedError, TookTooLongError
from allmetal.server.metrics import Metrics


@dataclass(slots=True)
class Phase:
    """Where in its life the server is."""

    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One engine behind one server."""

    engine: AsyncEngine
    model_name: str
    metrics: Metrics
    sampling_defaults: Mapping[str, Any]
    request_timeout: float | None = None
    phase: Phase = field(default_factory=Phase)
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def make(cls, engine: AsyncEngine, config: ServerConfig) -> ServerState:
        name = config.served_model_name or engine.config.model
        recommended = sampling_defaults(engine.generation_config)
        return cls(
            engine=engine,
            model_name=name,
            metrics=Metrics(name),
            sampling_defaults=recommended if config.generation_defaults else {},
            request_timeout=config.request_timeout,
        )

    def check_model(self, name: str | None) -> None:
        """Raises ModelNotFoundError; a request that names no model means the one there is."""
        if name is not None and name != self.model_name:
            raise ModelNotFoundError(
                f"there is no model {name!r} here", hint=f"this server has {self.model_name!r}"
            )

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        request_id: str,
        priority: int,
        cache_salt: str,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The engine's outputs, measured.

        Raises StepFailedError if the device failed, TookTooLongError where time is limited.
        """
        outputs = self.metrics.observe(
            self.engine.generate(
                prompt,
                sampling,
                request_id=request_id,
                priority=priority,
                cache_salt=cache_salt,
            )
        )
        if self.request_timeout is not None:
            outputs = _within(self.request_timeout, outputs)
        try:
            async for output in outputs:
                if output.error is not None:
                    raise StepFailedError(f"the step of this request failed: {output.error}")
                yield output
        finally:
            await outputs.aclose()


async def _within(
    seconds: float, outputs: AsyncGenerator[RequestOutput, None]
) -> AsyncGenerator[RequestOutput, None]:
    deadline = asyncio.get_running_loop().time() + seconds
    try:
        while True:
            async with asyncio.timeout_at(deadline):
                output = await anext(outputs)
            yield output
    except StopAsyncIteration:
        return
    except TimeoutError:
        raise TookTooLongError(
            f"the request did not end within {seconds:g} seconds",
            hint="ask for fewer tokens, or start the server with a larger --request-timeout",
        ) from None
    finally:
        await outputs.aclose()


def state_of(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state
