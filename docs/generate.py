"""The generated parts of the docs; cog calls these between its markers.

Run as a program it writes the pages that are generated as a whole; with --check it compares them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from allmetal import config
from allmetal.checkpoint.gguf.hf_config import FAMILIES
from allmetal.cli import COMMANDS, build_parser
from allmetal.platform.discover import discover, known_platforms
from allmetal.platform.evidence import read_evidence
from allmetal.platform.features import REGISTRY
from allmetal.platform.matrix import Matrix, matrix
from allmetal.platform.matrix_page import as_page
from allmetal.quant.ggml import BLOCKS

DOCS = Path(__file__).parent


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(header)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines)


def support() -> Matrix:
    """What the platforms of this repository say, and the evidence kept beside these pages."""
    ours = [found for found in discover() if found.name in known_platforms()]
    return matrix(ours, evidence=read_evidence([DOCS / "evidence"]), live=False)


def feature_tables() -> str:
    """The registry, group by group."""
    parts = []
    for group, names in groupby(REGISTRY, key=lambda name: REGISTRY[name].group):
        rows = []
        for name in names:
            feature = REGISTRY[name]
            option = f"`--{feature.option.replace('_', '-')}`" if feature.option else ""
            silent = feature.everywhere.how if feature.everywhere else "counts as not had"
            rows.append(
                (f"`{name}`", feature.doc, option, feature.without, feature.fallback, silent)
            )
        header = ("feature", "what it is", "option", "without it", "policy", "platform is silent")
        parts.append(f"## {group.capitalize()}\n\n{table(header, rows)}")
    return "\n\n".join(parts)


def main(check: bool) -> int:
    """Write the pages that are generated as a whole, or tell whether they are old."""
    page, made = DOCS / "support.html", as_page(support()).rstrip() + "\n"
    if check:
        old = not page.exists() or page.read_text() != made
        print(f"{page.name} is {'old: make docs' if old else 'current'}")
        return int(old)
    page.write_text(made)
    return 0


def config_table(name: str) -> str:
    """One row a field of a config dataclass."""
    kind = getattr(config, name)
    hints = get_type_hints(kind)
    rows = [
        (f"`{f.name}`", _type(hints[f.name], f.metadata), _default(f), f.metadata.get("doc", ""))
        for f in fields(kind)
    ]
    return table(("option", "type", "default", "what it does"), rows)


def environment_table() -> str:
    """One row a variable that config.py reads, with the first line of the reader's docstring."""
    rows = []
    for reader in vars(config).values():
        doc = getattr(reader, "__doc__", None) or ""
        if getattr(reader, "__module__", "") != config.__name__ or not callable(reader):
            continue
        names = dict.fromkeys(re.findall(r"\$([A-Z_]+)", doc))
        if names:
            rows.append((", ".join(f"`{n}`" for n in names), doc.split("\n")[0].replace("$", "")))
    return table(("variable", "what it is"), rows)


def gguf_architectures() -> str:
    return _listed(sorted(FAMILIES))


def ggml_types() -> str:
    return _listed([*BLOCKS, "F16", "BF16", "F32"])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def command_list() -> str:
    return table(
        ("command", "what it does"), [(f"`allmetal {n}`", doc) for n, doc in COMMANDS.items()]
    )


def command_section(command: str) -> str:
    """A heading, the summary and the options of a command, and the same of its parts."""
    parser = _parts(build_parser(command))[command]
    text = _section(f"## allmetal {command}", COMMANDS[command], parser)
    for part, inner in _parts(parser).items():
        text += _section(f"### allmetal {command} {part}", inner.description or "", inner)
    return text


def _section(heading: str, summary: str, parser: argparse.ArgumentParser) -> str:
    sentence = f"{summary[0].upper()}{summary[1:]}.\n\n" if summary else ""
    return f"{heading}\n\n{sentence}{options(parser)}\n\n"


def _parts(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The subcommands, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def options(parser: argparse.ArgumentParser) -> str:
    """One row an argument, group by group; those of the config are on a page of their own.

    Not argparse's own text, which differs between Python versions and terminal widths.
    """
    configs = {"EngineConfig": "engine", "ServerConfig": "server"}
    elsewhere = {
        field.metadata.get("group"): page
        for name, page in configs.items()
        for field in fields(getattr(config, name))
    }
    parts, linked = [], dict[str, None]()
    for group in parser._action_groups:
        rows = [
            (_names(action), _metavar(action), (action.help or "").replace("%%", "%"))
            for action in group._group_actions
            if action.help is not argparse.SUPPRESS
            and not {"--help", "--debug"} & set(action.option_strings)  # told once for all
        ]
        if rows and group.title in elsewhere:
            linked[elsewhere[group.title]] = None
        elif rows:
            parts.append(table((str(group.title), "value", "what it does"), rows))
    pages = " and ".join(f"[{page}](configuration.md#{page})" for page in linked)
    return "\n\n".join([*parts, *([f"And the options of the {pages}."] if linked else [])])


def _names(action: argparse.Action) -> str:
    names = action.option_strings or [str(action.metavar or action.dest).upper()]
    return ", ".join(f"`{name}`" for name in names)


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None:
        return ", ".join(f"`{c}`" for c in action.choices)
    if not action.option_strings or action.nargs == 0:
        return ""
    return f"`{action.metavar or action.dest.upper()}`"


def _type(hint: Any, metadata: Mapping[str, Any]) -> str:
    options = get_args(hint)
    if type(None) in options:  # `X | None` is an X that may be left out
        (hint,) = (option for option in options if option is not type(None))
    literals = get_args(hint) if get_origin(hint) is Literal else ()
    if choices := metadata.get("choices") or literals:
        return ", ".join(f"`{choice}`" for choice in choices)
    if metadata.get("metavar"):
        return f"`{metadata['metavar']}`"
    words = {str: "text", int: "integer", float: "number", bool: "on or off"}
    return words.get(hint, str(hint))


def _default(field: Any) -> str:
    if field.default is not MISSING:
        words = {None: "", True: "on", False: "off"}
        default = field.default
        known = default is None or isinstance(default, bool)
        return words[default] if known else f"`{default}`"
    return "" if field.default_factory is not MISSING else "required"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
