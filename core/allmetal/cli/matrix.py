"""`allmetal matrix`: feature × platform."""

from __future__ import annotations

import argparse

from allmetal.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=("table", "md", "json"),
        default="table",
        help="how to print it (default: table)",
    )
    parser.add_argument(
        "--why", metavar="PLATFORM", help="one platform's answers with its reasons instead"
    )


def execute(args: argparse.Namespace) -> int:
    from allmetal.platform.matrix import matrix, reasons, render_matrix

    made = matrix()
    if args.why is None:
        print(render_matrix(made, args.format))
        return 0
    names = [column.platform for column in made.columns]
    if args.why not in names:
        raise ConfigError(
            f"no platform is called {args.why!r}", hint=f"there are: {', '.join(names)}"
        )
    rows = reasons(made, args.why)
    width = max((len(feature) for feature, _ in rows), default=0)
    for feature, reason in rows:
        print(f"{feature:{width}}  {reason}")
    return 0
