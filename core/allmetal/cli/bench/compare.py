"""`allmetal bench compare FILE FILE ..`: results beside each other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser, _: str) -> None:
    parser.add_argument(
        "files", metavar="FILE", type=Path, nargs="+", help="results that --json wrote"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with plots there")
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="compare although models, machines, plans or workloads differ",
    )


def execute(args: argparse.Namespace) -> int:
    from allmetal.bench.compare.differences import check, differences
    from allmetal.bench.compare.page import as_page
    from allmetal.bench.compare.ratios import as_table, rows
    from allmetal.bench.compare.runs import read_results

    results = read_results(args.files)
    found = differences(results)
    if not args.anyway:
        check(found)
    for difference in found:
        mark = "!" if difference.forbids else " "
        print(f"{mark} {difference.what}: {' / '.join(difference.values)}", file=sys.stderr)
    print(as_table(results, rows(results)))
    if args.html is not None:
        args.html.write_text(as_page(results, found), encoding="utf-8")
    return 0
