"""`allmetal doctor`: what is missing or broken on this machine."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(args: argparse.Namespace) -> int:
    """Exit code 1 if something is broken."""
    from allmetal.platform.doctor import examine, healthy, render_findings

    findings = examine()
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        print(render_findings(findings))
    return 0 if healthy(findings) else 1
