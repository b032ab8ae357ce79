"""What every handler needs, made once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from allmetal.config import ServerConfig
from allmetal.engine.async_engine import AsyncEngine
from allmetal.engine.defaults import sampling_defaults
from allmetal.engine.output import Prompt
from allmetal.errors import RequestError, StepFailedError
from allmetal.parsing import Family, family_for
from allmetal.request import PoolingParams, RequestOutput, SamplingParams
from allmetal.server.errors import ModelNotFoundError, TookTooLongError
from allmetal.server.metrics import Metrics
from allmetal.server.openai.responses.store import ResponseStore
from allmetal.server.request_log import RequestLog
from allmetal.server.timeline import Observer, Timeline, observed
from allmetal.server.traces import Traces


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
    observers: Sequence[Observer]
    sampling_defaults: Mapping[str, Any]
    family: Family
    request_timeout: float | None = None
    admin: bool = False
    responses: ResponseStore = field(default_factory=lambda: ResponseStore(0))
    max_sequences: int = 1024
    """Of one request: prompts times completions."""
    phase: Phase = field(default_factory=Phase)
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def make(cls, engine: AsyncEngine, config: ServerConfig) -> ServerState:
        name = config.served_model_name or engine.config.model
        recommended = sampling_defaults(engine.generation_config)
        metrics = Metrics(name, engine.ready)
        observers: list[Observer] = [metrics]
        if config.log_requests:
            observers.append(RequestLog())
        if config.otlp_endpoint is not None:
            observers.append(Traces(config.otlp_endpoint, name))
        return cls(
            engine=engine,
            model_name=name,
            metrics=metrics,
            observers=observers,
            sampling_defaults=recommended if config.generation_defaults else {},
            family=family_for(
                engine.tokenizer.chat_template,
                tools=config.tool_parser,
                reasoning=config.reasoning_parser,
            ),
            request_timeout=config.request_timeout,
            admin=config.admin,
            responses=_store(config),
            max_sequences=config.max_sequences_per_request,
        )

    def close(self) -> None:
        """Send what observers still hold."""
        for observer in self.observers:
            if isinstance(observer, Traces):
                observer.close()

    def check_model(self, name: str | None) -> None:
        """Raises ModelNotFoundError; a request that names no model means the one there is."""
        if name is not None and name != self.model_name:
            raise ModelNotFoundError(
                f"there is no model {name!r} here", hint=f"this server has {self.model_name!r}"
            )

    def check_sequences(self, num_prompts: int, n: int) -> None:
        """Raises RequestError for more of them than one request may have."""
        if num_prompts * n > self.max_sequences:
            raise RequestError(
                f"{num_prompts} prompts with n = {n} are {num_prompts * n} sequences; one request "
                f"may have {self.max_sequences}",
                hint="send several requests, or start with a larger --max-sequences-per-request",
            )

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        request_id: str,
        priority: int,
        cache_salt: str,
        pooling: PoolingParams | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The engine's outputs, measured.

        Raises StepFailedError if the device failed, TookTooLongError where time is limited.
        """
        outputs = observed(
            self.engine.generate(
                prompt,
                sampling,
                request_id=request_id,
                priority=priority,
                cache_salt=cache_salt,
                pooling=pooling,
            ),
            Timeline(request_id=request_id, sampling=sampling),
            self.observers,
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


def _store(config: ServerConfig) -> ResponseStore:
    if config.api_processes > 1:
        return ResponseStore(0, "several processes answer, and each has a memory of its own")
    return ResponseStore(config.max_stored_responses, "it was started so")


def state_of(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state
