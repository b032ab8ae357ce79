"""Compiles constraints beside the engine's loop: in threads, once each, within a time."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module

from allmetal.constraint import Constraint
from allmetal.errors import AllmetalError, RequestError
from allmetal.platform.contract import Unsupported
from allmetal.structured.contract import Grammar, Provider, Vocabulary

log = logging.getLogger(__name__)
_THREADS = 2
_MOST_KEPT = 256
"""Compiled constraints, the least used of which is dropped; what runs keeps its own."""
_MOST_WAITING = 64
_SET_UP_S = 120.0
"""That a provider may take to be imported and to take in a vocabulary, once."""
_LOOK_S = 0.2


@dataclass(slots=True)
class _Clock:
    """When a constraint's own compiling began: not before its provider was there."""

    begun: float | None = None


@dataclass(frozen=True, slots=True)
class Compiling:
    """A constraint on its way."""

    future: Future[Grammar]
    limit_s: float
    clock: _Clock
    asked: float

    @property
    def done(self) -> bool:
        """Whether `result` answers at once."""
        return self.future.done() or self._left() <= 0

    def _left(self) -> float:
        begun = self.clock.begun
        end = self.asked + _SET_UP_S if begun is None else max(begun, self.asked)
        return end + self.limit_s - time.monotonic()

    def result(self) -> Grammar:
        """Wait for it.  Raises RequestError: it is wrong, or takes too long."""
        while not self.done:
            with suppress(FutureTimeoutError):
                self.future.result(min(max(0.0, self._left()), _LOOK_S))
        if self.future.done():
            return self.future.result()
        raise RequestError(
            f"structured output: it could not be compiled within {self.limit_s:g} s",
            hint="simplify it: large bounds (minLength, maxItems, {n,m}) cost most",
        )


class GrammarCompiler:
    """One for an engine.  `vocabulary` is called when the first constraint comes, in a thread."""

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        providers: Mapping[str, str],
        *,
        preferred: str = "auto",
        limit_s: float = 10.0,
    ) -> None:
        self._make_vocabulary = vocabulary
        self._names = providers
        self._preferred = preferred
        self._limit_s = limit_s
        self._made: dict[str, Provider] = {}
        self._vocabulary: Vocabulary | None = None
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._kept: OrderedDict[Constraint, tuple[Future[Grammar], _Clock]] = OrderedDict()

    def submit(self, constraint: Constraint) -> Compiling:
        """Begin to compile, unless it is or was.  Raises RequestError if too many are waiting."""
        known = self._kept.get(constraint)
        if known is not None and not (known[0].done() and known[0].exception() is not None):
            self._kept.move_to_end(constraint)
            return Compiling(known[0], self._limit_s, known[1], time.monotonic())
        if sum(not future.done() for future, _ in self._kept.values()) >= _MOST_WAITING:
            raise RequestError(
                f"structured output: {_MOST_WAITING} constraints are being compiled",
                hint="try again later, or ask for one that was asked for before",
            )
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        clock = _Clock()
        future = self._threads.submit(self._compile, constraint, clock)
        self._kept[constraint] = future, clock
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return Compiling(future, self._limit_s, clock, time.monotonic())

    def close(self) -> None:
        """What is being compiled is not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- in a thread -------------------------------------------------------------------------

    def _compile(self, constraint: Constraint, clock: _Clock) -> Grammar:
        refused: list[str] = []
        for name in self._order(constraint):
            try:
                provider = self._provider(name)
                clock.begun = clock.begun or time.monotonic()
                answer = provider.compile(constraint)
            except ImportError as error:
                refused.append(f"{name}: {error}")
                continue
            except AllmetalError:
                raise
            except Exception as error:  # a stranger's code may do anything
                log.exception("the provider %s fails on %s", name, constraint)
                refused.append(f"{name} failed: {readable(error)}")
                continue
            if not isinstance(answer, Unsupported):
                return answer
            refused.append(f"{name}: {answer.reason}")
        reasons = "; ".join(refused) or "there is no provider"
        missing = "pip install 'allmetal[structured]' on the server"
        known = ", ".join(self._names) or "none"
        raise RequestError(
            f"structured output: {constraint.kind} cannot be had: {reasons}",
            hint=missing if "No module" in reasons else f"providers here: {known}",
        )

    def _order(self, constraint: Constraint) -> list[str]:
        asked = constraint.provider or self._preferred
        if asked == "auto":
            return list(self._names)
        if asked not in self._names:
            raise RequestError(
                f"structured output: there is no provider {asked!r}",
                hint=f"one of {', '.join(['auto', *self._names])}",
            )
        return [asked]

    def _provider(self, name: str) -> Provider:
        with self._lock:
            if name not in self._made:
                module, _, attribute = self._names[name].partition(":")
                make: Callable[[Vocabulary], Provider] = getattr(import_module(module), attribute)
                if self._vocabulary is None:
                    self._vocabulary = self._make_vocabulary()
                self._made[name] = make(self._vocabulary)
            return self._made[name]


def readable(error: Exception) -> str:
    """A provider's own complaint, on one line."""
    if isinstance(error, AllmetalError):
        return error.message
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__
