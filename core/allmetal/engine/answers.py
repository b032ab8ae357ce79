"""What the engine does when a front end asks."""

from __future__ import annotations

from allmetal.engine.asks import (
    AbortRequests,
    AnyAsk,
    AskState,
    AskStats,
    Drain,
    EngineState,
    Pause,
    ResetPrefixCache,
    Resume,
    Sleep,
    Wake,
)
from allmetal.engine.engine import Engine
from allmetal.errors import AllmetalError, RequestError, UnavailableError
from allmetal.executor.contract import GivesMemoryBack
from allmetal.platform.contract import Unsupported
from allmetal.request import TokenDelta


def answer(engine: Engine, ask: AnyAsk, deltas: list[TokenDelta]) -> object:
    """Do it; what it made of requests is added to `deltas`.  Raises AllmetalError."""
    freed_bytes = 0
    match ask:
        case AskStats():
            return engine.stats()
        case AbortRequests(request_id):
            ended = engine.abort(sequences_of(request_id, engine.open_requests))
            deltas += ended
            return len(ended)
        case AskState():
            pass
        case Pause():
            engine.scheduler.paused = True
        case Drain():
            engine.draining = True
        case Resume():
            _resume(engine)
        case ResetPrefixCache():
            engine.cache.pool.forget_all()
        case Sleep(level):
            freed_bytes = _sleep(engine, level, deltas)
        case Wake():
            _wake(engine)
    return _state(engine, freed_bytes)


def sequences_of(request_id: str | None, open_requests: list[str]) -> list[str]:
    """A request's sequences have ids made of its own: `ID`, `ID/1`, `ID-1`, `ID-1/1`."""
    if request_id is None:
        return open_requests
    return [
        each
        for each in open_requests
        if each == request_id or each.startswith((f"{request_id}/", f"{request_id}-"))
    ]


def _state(engine: Engine, freed_bytes: int) -> EngineState:
    return EngineState(
        paused=engine.scheduler.paused,
        sleep_level=engine.sleep_level,
        num_running=len(engine.scheduler.running),
        num_waiting=len(engine.scheduler.waiting),
        draining=engine.draining,
        freed_bytes=freed_bytes,
    )


def _resume(engine: Engine) -> None:
    if engine.sleep_level:
        raise RequestError("the engine sleeps", hint="wake it: that resumes too")
    engine.scheduler.paused = engine.draining = False


def _sleep(engine: Engine, level: int, deltas: list[TokenDelta]) -> int:
    if level not in (1, 2):
        raise RequestError(
            f"there is no sleep level {level}", hint="1 gives the cache back, 2 the weights too"
        )
    if engine.sleep_level >= level:
        return 0
    executor = engine.executor
    if not isinstance(executor, GivesMemoryBack):
        raise UnavailableError(
            f"{type(executor).__name__} cannot give its memory back", hint="pause, or stop it"
        )
    deltas += engine.settle()
    was_paused, engine.scheduler.paused = engine.scheduler.paused, True
    freed = executor.release(weights=level == 2)
    if isinstance(freed, Unsupported):
        engine.scheduler.paused = was_paused
        raise UnavailableError(freed.reason)
    engine.scheduler.put_all_back()
    engine.cache.pool.forget_all()
    engine.sleep_level = level
    return freed


def _wake(engine: Engine) -> None:
    if engine.sleep_level:
        assert isinstance(engine.executor, GivesMemoryBack)
        try:
            engine.executor.restore(engine.layout)
        except AllmetalError:
            raise
        except Exception as error:  # whatever a device raises; it sleeps on, and may be asked again
            raise UnavailableError(f"cannot wake: {type(error).__name__}: {error}") from error
        engine.sleep_level = 0
    engine.scheduler.paused = False
