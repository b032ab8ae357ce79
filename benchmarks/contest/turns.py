"""Ours and theirs in turn, the bandwidth probed between, and a table at the end."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from contest.load import METRICS
from contest.probe import bandwidth
from contest.processes import Others
from contest.sides import Ours, Side
from contest.worker import Figure

STARTUP = "startup"


@dataclass
class Measured:
    """`probed`: GB/s just before; `others`: cores that the rest of the machine kept busy."""

    metric: str
    side: str
    value: float
    memory: int
    probed: float | None
    others: float


def parser(doc: str | None, *, ours_is_required: bool = True) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=(doc or "").split("\n\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(doc or "").partition("\n\n")[2],
    )
    made.add_argument(
        "--ours", required=ours_is_required, metavar="MODEL", help="what allmetal loads"
    )
    made.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of allmetal's, such as quantization=int8",
    )
    made.add_argument("--rounds", type=int, default=3, help="measurements of each")
    made.add_argument(
        "--metrics", nargs="+", default=[*METRICS, STARTUP], choices=[*METRICS, STARTUP]
    )
    made.add_argument("--json", type=Path, help="add all figures to this file, a line each")
    return made


def in_turn(args: argparse.Namespace, theirs: Side) -> None:
    ours = Ours(args.ours, dict(option.split("=", 1) for option in args.option))
    sides: list[Side] = [ours, theirs]
    measured: list[Measured] = []
    try:
        for metric in args.metrics:
            for _ in range(args.rounds):
                for side in sides:
                    measured.append(_measure(side, metric))
                    _show(measured[-1])
    finally:
        for side in sides:
            side.close()
    _report(measured, sides)
    if args.json:
        with args.json.open("a") as file:
            for one in measured:
                print(
                    json.dumps({"model": args.ours, "against": theirs.name, **asdict(one)}),
                    file=file,
                )


def _measure(side: Side, metric: str) -> Measured:
    probed = bandwidth() if metric == "decode" else None
    run: Callable[[], Figure] = side.startup if metric == STARTUP else lambda: side.measure(metric)
    with Others() as others:
        found = run()
    return Measured(metric, side.name, found.value, found.memory, probed, others.cores)


def _show(one: Measured) -> None:
    probed = "" if one.probed is None else f", {one.probed:.1f} GB/s"
    print(
        f"{one.metric} {one.side}: {one.value:.2f}, {one.memory >> 20} MiB, "
        f"{one.others:.2f} cores busy elsewhere{probed}",
        flush=True,
    )


def _report(measured: list[Measured], sides: list[Side]) -> None:
    """Medians; the ratio is above 1 where ours is better."""
    print(f"\n{'':10}" + "".join(f"{side.name:>22}" for side in sides) + f"{'ratio':>8}")
    for metric in dict.fromkeys(one.metric for one in measured):
        cells, medians = [], []
        for side in sides:
            mine = [one for one in measured if (one.metric, one.side) == (metric, side.name)]
            medians.append(statistics.median(one.value for one in mine))
            cells.append(f"{medians[-1]:.2f}{_share(mine, side.bytes_read)}")
        ratio = medians[0] / medians[1]
        if metric == STARTUP:
            ratio = 1 / ratio
        print(f"{metric:10}" + "".join(f"{cell:>22}" for cell in cells) + f"{ratio:8.2f}")
    peaks = [max(one.memory for one in measured if one.side == side.name) for side in sides]
    print(f"{'peak MiB':10}" + "".join(f"{peak >> 20:>22}" for peak in peaks))


def _share(mine: list[Measured], bytes_read: int | None) -> str:
    """Of the probed bandwidth, by the bytes of weights that a token takes."""
    shares = [
        1e-9 * bytes_read * one.value / one.probed for one in mine if one.probed and bytes_read
    ]
    return f" ({statistics.median(shares):.0%})" if shares else ""
