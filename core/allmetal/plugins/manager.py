"""Load plugins, and keep a broken one from stopping the others."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from allmetal.config import PluginKind, plugin_lists
from allmetal.platform.hints import HardwareHint, TorchNeed
from allmetal.plugins import hookspecs

if TYPE_CHECKING:
    from allmetal.parsing.contract import ParserSpec

T = TypeVar("T")
CORE = "allmetal"
"""The distribution whose plugins are built in."""


@dataclass(slots=True, kw_only=True)
class Plugin:
    """An announced plugin.  `problem` is "" while it works; `traceback` says more of one."""

    name: str
    origin: str
    builtin: bool
    problem: str = ""
    traceback: str = ""
    module: object | None = None

    def fail(self, problem: str) -> None:
        """Leave it out from now on.  Called while the exception is being handled, if any."""
        self.problem, self.module = problem, None
        self.traceback = traceback.format_exc()


class Plugins:
    """All plugins found, built-in ones first, and what those that work announce."""

    def __init__(self, found: Iterable[Plugin], manager: pluggy.PluginManager) -> None:
        self.found = tuple(found)
        self._manager = manager

    def models(self) -> Mapping[str, str]:
        """Model type -> "module:callable".  A stranger's entry replaces a built-in one."""
        return self._merged("allmetal_models", _strings_by_string, Mapping.items, "model type")

    def parsers(self) -> Mapping[str, ParserSpec]:
        """Name -> parser.  A stranger's replaces a built-in one."""
        return self._merged("allmetal_parsers", _parsers, _by_name, "parser")

    def structured_providers(self) -> Mapping[str, str]:
        """Name -> "module:callable"."""
        hook, noun = "allmetal_structured_providers", "structured output provider"
        return self._merged(hook, _strings_by_string, Mapping.items, noun)

    def _merged(
        self,
        hook: str,
        check: Callable[[Any], bool],
        items: Callable[[Any], Iterable[tuple[str, T]]],
        noun: str,
    ) -> dict[str, T]:
        """What all announce, by name; of two strangers the first has a name."""
        holders: dict[str, Plugin] = {}
        merged: dict[str, T] = {}
        for plugin, answer in self._ask(hook, check):
            for name, value in items(answer):
                holder = holders.get(name)
                if holder is not None and not holder.builtin:
                    plugin.problem = f"{noun} {name!r} is {holder.name}'s already"
                    continue
                holders[name], merged[name] = plugin, value
        return merged

    def hardware_hints(self) -> list[HardwareHint]:
        """What all plugins saw."""
        answers = self._ask("allmetal_hardware_hints", _hints)
        return [hint for _, hints in answers for hint in hints]

    def torch_needs(self) -> list[TorchNeed]:
        """What all plugins know."""
        answers = self._ask("allmetal_torch_needs", _needs)
        return [need for _, needs in answers for need in needs]

    def _ask(self, hook: str, check: Callable[[Any], bool]) -> list[tuple[Plugin, Any]]:
        """Each plugin's answer.  One that raises or answers nonsense is out from then on."""
        answers = []
        for plugin in self.found:
            if plugin.module is None:
                continue
            # One plugin at a time: pluggy would stop at the first that raises.
            others = [p.module for p in self.found if p.module not in (None, plugin.module)]
            try:
                for answer in self._manager.subset_hook_caller(hook, others)():
                    if not check(answer):
                        raise TypeError(f"{hook} answered {answer!r}")
                    answers.append((plugin, answer))
            except (Exception, SystemExit) as error:  # a stranger's code may do anything
                self._manager.unregister(plugin.module)
                plugin.fail(f"{type(error).__name__}: {error}")
        return answers


def load_plugins(points: Iterable[EntryPoint] | None = None) -> Plugins:
    """Import and register every plugin that the allow and deny lists leave."""
    manager = pluggy.PluginManager("allmetal")
    manager.add_hookspecs(hookspecs)
    found = []
    for point in entry_points(group=hookspecs.GROUP) if points is None else points:
        dist = point.dist
        plugin = Plugin(
            name=point.name,
            origin=f"{dist.name} {dist.version}" if dist else point.value,
            builtin=dist is not None and dist.name == CORE,
        )
        found.append(plugin)
        if reason := denied("plugins", plugin.name, builtin=plugin.builtin):
            plugin.problem = reason
        else:
            _register(manager, plugin, point)
    found.sort(key=lambda plugin: (not plugin.builtin, plugin.name))
    return Plugins(found, manager)


@cache
def plugins() -> Plugins:
    """This process's plugins, loaded once."""
    return load_plugins()


def denied(kind: PluginKind, name: str, *, builtin: bool = False) -> str | None:
    """Why the user's lists leave a plugin out; the allow list is about strangers' only."""
    allowed, deny = plugin_lists(kind)
    if name in deny:
        return f"denied by ALLMETAL_{kind.upper()}_DENY"
    if allowed is not None and name not in allowed and not builtin:
        return f"not among ALLMETAL_{kind.upper()}"
    return None


def _register(manager: pluggy.PluginManager, plugin: Plugin, point: EntryPoint) -> None:
    try:
        plugin.module = point.load()
        manager.register(plugin.module, name=f"{plugin.name} of {plugin.origin}")
        manager.check_pending()
    except (Exception, SystemExit) as error:  # a stranger's import may do anything
        if plugin.module is not None and manager.is_registered(plugin.module):
            manager.unregister(plugin.module)
        plugin.fail(f"{type(error).__name__}: {error}")


def _strings_by_string(answer: object) -> bool:
    return isinstance(answer, Mapping) and all(
        isinstance(key, str) and isinstance(value, str) for key, value in answer.items()
    )


def _hints(answer: object) -> bool:
    return isinstance(answer, list | tuple) and all(isinstance(x, HardwareHint) for x in answer)


def _needs(answer: object) -> bool:
    return isinstance(answer, list | tuple) and all(isinstance(x, TorchNeed) for x in answer)


def _parsers(answer: object) -> bool:
    from allmetal.parsing.contract import ParserSpec  # which looks for its parsers here

    return isinstance(answer, list | tuple) and all(isinstance(x, ParserSpec) for x in answer)


def _by_name(answer: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    return [(each.name, each) for each in answer]
