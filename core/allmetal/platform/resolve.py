"""From a config and a checkpoint to a platform and a plan: the one way for all who need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allmetal.checkpoint.contract import Checkpoint
from allmetal.config import EngineConfig
from allmetal.errors import AllmetalError, PlatformError
from allmetal.executor.contract import BringsExecutor, Executor
from allmetal.platform.contract import (
    Advice,
    CapabilityTable,
    DeviceInfo,
    ModelFacts,
    OpenOptions,
    Platform,
    Unsupported,
)
from allmetal.platform.discover import Failed, Found, discover
from allmetal.platform.hints import HardwareHint
from allmetal.platform.pick import select_device, select_platform, troubles, why_not
from allmetal.platform.plan import AUTO, Decision, Plan
from allmetal.platform.planner import plan
from allmetal.platform.render import warning
from allmetal.platform.uses import with_kernels
from allmetal.plugins.manager import plugins

if TYPE_CHECKING:
    from allmetal.runner.foretell import Foretold


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """`executor` is the platform's own, not loaded; None: the core's runs the platform's kernels,
    which are `foretold`.  `notes` are one-line warnings: broken plugins, wishes
    not granted."""

    platform: Platform
    device_info: DeviceInfo
    plan: Plan
    executor: Executor | None = None
    foretold: Foretold | None = None
    notes: tuple[str, ...] = ()


def resolve(config: EngineConfig, checkpoint: Checkpoint) -> Resolved:
    """Find the platforms, choose one, ask it, and plan.

    A platform that is named is the only one that is loaded.  The device is opened for its advice
    and closed again.  Raises ConfigError, FallbackError, NoKernelError, PlatformError.
    """
    from allmetal_models.facts import facts

    auto = config.platform == AUTO
    hints = plugins().hardware_hints() if auto else []
    found = discover(only=None if auto else {config.platform}) or discover()
    chosen = select_platform(config.platform, found, hints)
    info = select_device(chosen, config.device)
    model: ModelFacts = facts(
        checkpoint.config, checkpoint.tensors, checkpoint.modules, config.task
    )
    platform = chosen.platform
    assert platform is not None
    table, advice = _ask(chosen, platform, info, config, model)
    left = len(chosen.devices) - info.index
    made = plan(config, model, chosen.name, info, table, advice, num_devices=left)
    executor, rows = _own_executor(platform, config, made)
    made, foretold = made.amended(rows), None
    if executor is None:
        from allmetal.runner.foretell import foretell

        foretold = foretell(config, made, platform, checkpoint)
        made = with_kernels(made, foretold.choices, config.kernel)
    notes = (*_notes(config, found, hints), *(warning(row) for row in made.warnings))
    return Resolved(
        platform=platform,
        device_info=info,
        plan=made,
        executor=executor,
        foretold=foretold,
        notes=notes,
    )


def _own_executor(
    platform: Platform, config: EngineConfig, plan: Plan
) -> tuple[Executor | None, Sequence[Decision]]:
    """What the platform brings instead of the core's executor, and the plan's row that says so."""
    if not isinstance(platform, BringsExecutor):
        return None, ()
    answer = platform.executor(config, plan)
    if isinstance(answer, Unsupported):
        executor, got, reason = None, "the core's", answer.reason
    else:
        executor, got, reason = answer, "the platform's own", type(answer).__name__
    return executor, [
        Decision(feature="executor", asked=AUTO, got=got, by="platform", reason=reason)
    ]


def _ask(
    chosen: Found, platform: Platform, info: DeviceInfo, config: EngineConfig, model: ModelFacts
) -> tuple[CapabilityTable, Advice]:
    """What the platform says of a device.  PlatformError names it where it raises or answers
    nonsense."""
    try:
        device = platform.open(info, OpenOptions(threads=config.threads))
        try:
            advice = device.advice(model)
        finally:
            device.close()
        table = platform.capabilities(info)
    except AllmetalError:
        raise
    except Exception as error:  # a stranger's code may raise anything
        raise PlatformError(
            f"platform {chosen.name} ({chosen.origin}) raised {type(error).__name__}: {error}",
            hint="--debug shows the traceback; --platform takes another",
        ) from error
    if not isinstance(table, Mapping) or not isinstance(advice, Advice):
        what = table if isinstance(advice, Advice) else advice
        raise PlatformError(f"platform {chosen.name} ({chosen.origin}) answered {what!r}")
    return table, advice


def platform_named(name: str) -> Platform:
    """The platform a plan names, without loading any other.  Raises as `select_platform`."""
    platform = select_platform(name, discover(only={name})).platform
    assert platform is not None
    return platform


def _notes(
    config: EngineConfig, found: Sequence[Found], hints: Sequence[HardwareHint]
) -> list[str]:
    """Broken plugins; hardware left unused too, unless the user said what to use."""
    broken = [f"{f.name}: {why_not(f)}" for f in found if isinstance(f.state, Failed)]
    return broken + (troubles(found, hints) if config.platform == AUTO else [])
