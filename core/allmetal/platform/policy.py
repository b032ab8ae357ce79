"""What happens where a feature cannot be had: the one place that decides between an error, a
warning and silence.

A choice that the user made is never replaced, unless the user named that very feature and let it
go: `--fallback kv_cache_dtype=warn`.  Everything else follows, in this order: the feature's own
policy if named, the policy for all (`--fallback error`), the feature's default in the registry.
`--strict` makes every warning an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from allmetal.config import ALL_FEATURES, EngineConfig, Fallback
from allmetal.errors import ConfigError
from allmetal.platform.features import REGISTRY
from allmetal.platform.specs import FAMILIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """`named`: a feature, a kind of features or an option -> its policy; "*" is for all."""

    named: Mapping[str, Fallback] = field(default_factory=dict)
    strict: bool = False

    def of(
        self,
        feature: str,
        *,
        explicit: bool = False,
        option: str = "",
        default: Fallback | None = None,
    ) -> Fallback:
        """`explicit`: the user asked for it.  `option`: the row it goes by, if another.  `default`
        instead of the registry's."""
        policy: Fallback | None = next(
            (self.named[n] for n in _names(feature, option) if n in self.named), None
        )
        if policy is None and explicit:
            return "error"
        if policy is None:
            known = REGISTRY.get(feature)
            usual: Fallback = known.fallback if known else "warn"
            policy = self.named.get(ALL_FEATURES, default or usual)
        return "error" if self.strict and policy == "warn" else policy


def policies_of(config: EngineConfig) -> Policies:
    """Raises ConfigError for a name that no feature goes by."""
    said = config.fallback
    named: Mapping[str, Fallback] = {ALL_FEATURES: said} if isinstance(said, str) else said
    known = nameable()
    for name in named:
        if name != ALL_FEATURES and name not in known:
            close = get_close_matches(name, known, n=3)
            raise ConfigError(
                f"no feature is called {name!r}",
                hint=f"did you mean {' or '.join(close)}?" if close else "docs/features.md has all",
            )
    return Policies(named=dict(named), strict=config.strict)


def nameable() -> list[str]:
    """All that a policy may be named for: features, kinds, options, kernels of a family."""
    names = [name for feature in REGISTRY for name in _names(feature, "")]
    options = [feature.option for feature in REGISTRY.values() if feature.option]
    return list(dict.fromkeys([*names, *options, "kernel", *(f"kernel.{f}" for f in FAMILIES)]))


def _names(feature: str, option: str) -> Iterator[str]:
    """Most telling first: `kv_dtype.int8`, `kv_dtype`, and the option's name."""
    yield feature
    while "." in feature:
        feature = feature.rpartition(".")[0]
        yield feature
    if option:
        yield option
