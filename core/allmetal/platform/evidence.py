"""What the conformance kit found, read back from the files that `allmetal plugin test` writes.

A file says of one platform on one device: who, when, with which versions, and of each feature how
many tests passed, failed and were skipped.  Correctness and speed are apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from allmetal.errors import ConfigError

FORMAT = 1
Kind: TypeAlias = Literal["run", "emulated", "schema-checked", "compiled"]
"""What a passed test proves.  run: it ran on the device.  emulated: the host computed for the
device, below the vendor's software or by interpreting kernels.  schema-checked: calls were held
against the vendor's own declarations.  compiled: kernels were compiled for the device."""
KINDS: tuple[Kind, ...] = get_args(Kind)
State: TypeAlias = Literal[
    "tested", "emulated", "schema-checked", "compiled", "failing", "declared", "untested", ""
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Numbers of tests."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One run of the kit.  `levels`: those that were run; `speed` is kept as it was written.
    `kind`: what a passed test proves.  `emulated`: features that the platform called so then, whose
    tests say nothing of a kernel that came later.  `left_out`: tests of these levels that were not
    run, in words; no levels: what was run is not the kit's."""

    platform: str
    plugin: str
    device: str
    driver: str
    date: str
    commit: str
    versions: Mapping[str, str]
    levels: tuple[int, ...]
    total: Tally
    features: Mapping[str, Tally]
    families: Mapping[str, Tally]
    failures: Sequence[tuple[str, str]]
    speed: Sequence[Mapping[str, Any]] = ()
    kind: Kind = "run"
    emulated: frozenset[str] = frozenset()
    left_out: str = ""
    path: str = ""

    @property
    def day(self) -> str:
        return self.date[:10]

    def says(self, feature: str) -> str:
        """Where, when and with what a feature was tested, in one line."""
        libraries = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.device}, {self.day}, {self.plugin}, {libraries}"


def state_of(feature: str, claimed: bool | None, evidence: Sequence[Evidence]) -> State:
    """What is known of a platform's feature.  `claimed`: it says it has it; None: it is silent.

    failing: a test of it failed in the latest run on some device; tested: some passed there and
    none failed; emulated, schema-checked, compiled: they passed, but not on a device; declared:
    claimed, and no test of it ran; untested: neither said nor tested.  A feature that a platform
    does not have needs no evidence.
    """
    if claimed is False:
        return ""
    tallies = [(e.kind, e.features.get(feature, Tally())) for e in latest(evidence)]
    if any(tally.failed for _, tally in tallies):
        return "failing"
    proved = {kind for kind, tally in tallies if tally.passed}
    for kind in KINDS:
        if kind in proved:
            return "tested" if kind == "run" else kind
    return "declared" if claimed else "untested"


def latest(evidence: Iterable[Evidence]) -> list[Evidence]:
    """The last run on each device, newest first."""
    newest: dict[str, Evidence] = {}
    for each in sorted(evidence, key=lambda e: e.date):
        newest[each.device] = each
    return sorted(newest.values(), key=lambda e: e.date, reverse=True)


def read_evidence(folders: Iterable[Path]) -> list[Evidence]:
    """Every *.json in these folders.  Raises ConfigError naming a file that is no evidence."""
    files = [file for folder in folders for file in sorted(folder.glob("*.json"))]
    return [_read(file) for file in files]


def shipped() -> list[Path]:
    """Where the core's own evidence lies: in the wheel, or in the docs of a checkout."""
    package = Path(__file__).parents[1]
    places = (package / "evidence", package.parents[1] / "docs" / "evidence")
    return [place for place in places if place.is_dir()][:1]


def of_plugins(points: Iterable[EntryPoint] | None = None) -> list[Evidence]:
    """What installed platforms ship beside their code, in a folder `evidence` of their package;
    each speaks for itself alone.  Nothing is imported."""
    found = []
    for point in entry_points(group="allmetal.platforms") if points is None else points:
        spec = find_spec(point.module.partition(".")[0])
        folders = [Path(p) / "evidence" for p in (spec and spec.submodule_search_locations) or ()]
        shipped = read_evidence(folder for folder in folders if folder.is_dir())
        found += [each for each in shipped if each.platform == point.name]
    return found


def kind_of(name: str) -> Kind:
    """Raises ValueError for none."""
    for kind in KINDS:
        if kind == name:
            return kind
    raise ValueError(f"there is no evidence of kind {name!r}; there are {', '.join(KINDS)}")


def _read(file: Path) -> Evidence:
    try:
        made = json.loads(file.read_text())
        if made["format"] != FORMAT:
            raise ValueError(f"it has format {made['format']}, and this is {FORMAT}")
        found, device = made["correctness"], made["device"]
        said = made.get("capabilities", {})
        return Evidence(
            platform=made["platform"],
            plugin=made["plugin"],
            device=device["name"],
            driver=device["driver"],
            date=made["date"],
            commit=made["commit"] or "",
            versions=made["versions"],
            levels=tuple(made["levels"]),
            total=Tally(**found["total"]),
            features={name: Tally(**tally) for name, tally in found["features"].items()},
            families={name: Tally(**tally) for name, tally in found["families"].items()},
            failures=[(each["test"], each["reason"]) for each in found["failures"]],
            speed=made.get("speed", ()),
            kind=kind_of(made.get("kind", "run")),
            emulated=frozenset(name for name, each in said.items() if each["word"] == "emulated"),
            left_out=made.get("left_out", ""),
            path=str(file),
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{file} is no evidence of this core: {what}",
            hint="allmetal plugin test NAME --evidence FILE writes it",
        ) from error
