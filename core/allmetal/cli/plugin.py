"""`allmetal plugin list`: what was found, where from, and what does not work.
`allmetal plugin test NAME`: the conformance kit on a platform that is installed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allmetal.cli import common
from allmetal.errors import ConfigError

if TYPE_CHECKING:
    from allmetal.testing.kit import KitRun

_WORKS = "works"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "platforms, and what else plugins announce"
    sub = actions.add_parser("list", help=summary, description=summary, parents=[common()])
    sub.add_argument("--json", action="store_true", help="print JSON")
    summary = "hold a platform against the conformance kit"
    sub = actions.add_parser("test", help=summary, description=summary, parents=[common()])
    sub.add_argument("platform", metavar="NAME", help="a platform that is installed")
    sub.add_argument(
        "--level",
        metavar="N",
        type=int,
        action="append",
        choices=range(4),
        help="only this one: 0 words, 1 kernels, 2 whole models, 3 several devices; may be given "
        "several times (default: all)",
    )
    sub.add_argument(
        "--select", metavar="EXPR", default="", help="only these tests, as in pytest's -k"
    )
    sub.add_argument("--device", metavar="N", type=int, default=0, help="index (default: 0)")
    sub.add_argument(
        "--jobs", metavar="N", type=int, default=1, help="processes at once (default: 1)"
    )
    sub.add_argument("--speed", action="store_true", help="time the kernels too, afterwards")
    sub.add_argument(
        "--evidence", metavar="FILE", type=Path, help="write what came of it, for the matrix"
    )


def execute(args: argparse.Namespace) -> int:
    if args.action == "test":
        return _test(args)
    listing = _listing()
    print(json.dumps(listing, indent=1) if args.json else _text(listing))
    return 0


def _test(args: argparse.Namespace) -> int:
    """Exit code 1 where a test failed or none passed."""
    try:
        from allmetal.testing.jobs import run_kit_in
        from allmetal.testing.kit import LEVELS, run_kit
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the kit needs {error.name}, which is not installed", hint=f"pip install {error.name}"
        ) from None
    from allmetal.platform.discover import discover
    from allmetal.platform.pick import select_device, select_platform

    found = select_platform(args.platform, discover(only={args.platform}))
    info, platform = select_device(found, args.device), found.platform
    assert platform is not None
    levels = args.level or list(LEVELS)
    if args.jobs > 1:
        run = run_kit_in(args.jobs, found.name, levels=levels, select=args.select, device=info)
    else:
        run = run_kit(platform, levels=levels, select=args.select, device=info)
    if run.problem:
        raise ConfigError(f"no test was run: {run.problem}", hint="see what pytest printed above")
    print("\n" + _summary(run))
    if args.evidence is not None or args.speed:
        from allmetal.testing.evidence import evidence_of, write_evidence

        made = evidence_of(run, platform, info, found.origin, levels, speed=args.speed)
        for row in made.get("speed", ()):
            print("{family}  {kernel}  {problem}, {size}: {microseconds} µs".format(**row))
        if args.evidence is not None:
            write_evidence(made, args.evidence)
            print(f"written to {args.evidence}")
    return 0 if run.green else 1


def _summary(run: KitRun) -> str:
    """A line for each level and family: how many passed, failed and were skipped."""
    counts: dict[str, dict[str, int]] = {}
    for result in run.results:
        key = f"level {result.level}" + f", {result.family}" * bool(result.family)
        tally = counts.setdefault(key, {"passed": 0, "failed": 0, "skipped": 0})
        tally[result.outcome] += 1
    width = max(map(len, counts), default=0)
    lines = [
        f"{key:{width}}  " + ", ".join(f"{n} {outcome}" for outcome, n in tally.items() if n)
        for key, tally in sorted(counts.items())
    ]
    lines += [f"FAILED {r.test}[{r.case}]: {r.reason}" for r in run.failed()]
    return "\n".join([*lines, f"{run.seconds:.0f} s"])


def _listing() -> dict[str, Any]:
    from allmetal.platform.discover import discover
    from allmetal.platform.pick import why_not
    from allmetal.plugins.manager import plugins

    loaded = plugins()
    models = dict(sorted(loaded.models().items()))
    return {
        "platforms": [
            {
                "name": found.name,
                "origin": found.origin,
                "state": why_not(found) or ", ".join(device.name for device in found.devices),
            }
            for found in discover()
        ],
        "plugins": [
            {
                "name": plugin.name,
                "origin": plugin.origin,
                "state": plugin.problem or _WORKS,
            }
            for plugin in loaded.found
        ],
        "models": models,
    }


def _text(listing: dict[str, Any]) -> str:
    parts = []
    for title in ("platforms", "plugins"):
        rows = [(row["name"], row["origin"], row["state"]) for row in listing[title]]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
        lines = [
            f"  {name:{widths[0]}}  {origin:{widths[1]}}  {state}" for name, origin, state in rows
        ]
        parts.append("\n".join([title, *lines]))
    parts.append("models\n  " + ", ".join(listing["models"]))
    return "\n\n".join(parts)
