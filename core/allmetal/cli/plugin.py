"""`allmetal plugin list`: what was found, where from, and what does not work."""

from __future__ import annotations

import argparse
import json
from typing import Any

from allmetal.cli import common

_WORKS = "works"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "platforms, and what else plugins announce"
    sub = actions.add_parser("list", help=summary, description=summary, parents=[common()])
    sub.add_argument("--json", action="store_true", help="print JSON")


def execute(args: argparse.Namespace) -> int:
    listing = _listing()
    print(json.dumps(listing, indent=1) if args.json else _text(listing))
    return 0


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
