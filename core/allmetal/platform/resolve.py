"""From a config and a checkpoint to a platform and a plan: the one way for all who need them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from allmetal.checkpoint.contract import Checkpoint
from allmetal.config import EngineConfig
from allmetal.platform.contract import DeviceInfo, ModelFacts, OpenOptions, Platform
from allmetal.platform.discover import Failed, Found, discover
from allmetal.platform.hints import HardwareHint
from allmetal.platform.pick import select_device, select_platform, troubles, why_not
from allmetal.platform.plan import Plan, plan
from allmetal.platform.render import warning
from allmetal.plugins.manager import plugins

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """`notes` are one-line warnings that were logged: broken plugins, wishes not granted."""

    platform: Platform
    device_info: DeviceInfo
    plan: Plan
    notes: tuple[str, ...] = ()


def resolve(config: EngineConfig, checkpoint: Checkpoint) -> Resolved:
    """Find the platforms, choose one, ask it, and plan.

    The device is opened for its advice and closed again.  Raises ConfigError, FallbackError,
    PlatformError.
    """
    from allmetal_models.facts import facts

    hints = plugins().hardware_hints() if config.platform == "auto" else []
    found = discover()
    chosen = select_platform(config.platform, found, hints)
    info = select_device(chosen, config.device)
    model: ModelFacts = facts(checkpoint.config, checkpoint.tensors)
    platform = chosen.platform
    assert platform is not None
    device = platform.open(info, OpenOptions(threads=config.threads))
    try:
        advice = device.advice(model)
    finally:
        device.close()
    made = plan(config, model, chosen.name, info, platform.capabilities(info), advice)
    notes = (*_notes(config, found, hints), *(warning(row) for row in made.warnings))
    for note in notes:
        log.warning(note)
    return Resolved(platform=platform, device_info=info, plan=made, notes=notes)


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
    return broken + (troubles(found, hints) if config.platform == "auto" else [])
