"""`allmetal matrix`: feature × platform, and on what evidence."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

FORMATS = ("table", "md", "json", "html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--platform",
        metavar="NAME",
        action="append",
        default=[],
        help="only this one, with its reasons; may be given several times",
    )
    parser.add_argument(
        "--feature",
        metavar="NAME",
        action="append",
        default=[],
        help="only this one, or features of this kind, as in quant; may be given several times",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="table", help="how to print it (default: table)"
    )
    parser.add_argument(
        "--evidence",
        metavar="DIR",
        type=Path,
        action="append",
        default=[],
        help="read the kit's files there too; may be given several times",
    )
    parser.add_argument(
        "--any-device",
        action="store_true",
        help="ask about a device nothing is known of: the same answer on every machine",
    )


def execute(args: argparse.Namespace) -> int:
    from allmetal.errors import ConfigError
    from allmetal.platform.evidence import of_plugins, read_evidence, shipped
    from allmetal.platform.matrix import matrix, narrowed
    from allmetal.platform.matrix_page import as_page
    from allmetal.platform.matrix_text import as_json, as_markdown, as_table

    for folder in args.evidence:
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}", hint="--evidence takes a folder")
    evidence = [*read_evidence([*shipped(), *args.evidence]), *of_plugins()]
    made = matrix(evidence=evidence, live=not args.any_device)
    made = narrowed(made, args.platform, args.feature)
    if args.format == "table":
        print(as_table(made, _width()))
    else:
        print({"md": as_markdown, "json": as_json, "html": as_page}[args.format](made))
    return 0


def _width() -> int:
    """Of the terminal; 0 where what is printed goes elsewhere, and lines stay whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
