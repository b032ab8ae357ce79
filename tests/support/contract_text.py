"""The public signatures of the contract as text: names, fields, defaults, arguments, types.

What is said about them is left out: comments, docstrings, private names.  `python
tests/support/contract_text.py` prints it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

CORE = Path(__file__).parents[2] / "core/allmetal"
FILES = (
    "platform/contract.py",
    *(
        f"platform/specs/{name}.py"
        for name in (
            "attention",
            "encoder_attention",
            "linear",
            "elementwise",
            "moe",
            "sampling",
            "decode_state",
        )
    ),
    "platform/batch.py",
    "platform/kv.py",
    "executor/contract.py",
)
"""All that a plugin that brings a platform may rely on."""


def contract_text() -> str:
    """Every file's signatures, one a line."""
    parts = [[f"# {name}", *signatures((CORE / name).read_text())] for name in FILES]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def signatures(source: str) -> list[str]:
    """Of one file, in its order."""
    return [line for node in ast.parse(source).body for line in _node(node)]


def _node(node: ast.stmt, indent: str = "") -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name) if _public(name):
            yield from (f"{indent}@{ast.unparse(d)}" for d in node.decorator_list)
            bases = ", ".join(map(ast.unparse, [*node.bases, *node.keywords]))
            yield f"{indent}class {name}({bases})"
            for child in node.body:
                yield from _node(child, indent + "    ")
        case ast.FunctionDef(name=name) if _public(name):
            yield from (f"{indent}@{ast.unparse(d)}" for d in node.decorator_list)
            returns = ast.unparse(node.returns) if node.returns else "?"
            yield f"{indent}def {name}({ast.unparse(node.args)}) -> {returns}"
        case ast.AnnAssign(target=ast.Name(id=name)) if _public(name):
            value = f" = {_value(node.value)}" if node.value else ""
            yield f"{indent}{name}: {ast.unparse(node.annotation)}{value}"
        case ast.Assign(targets=[ast.Name(id=name)]) if _public(name):
            yield f"{indent}{name} = {_value(node.value)}"


def _value(node: ast.expr) -> str:
    """A table of descriptions is its keys."""
    match node:
        case ast.Dict(keys=keys, values=values) if values and all(map(_is_text, values)):
            return "{" + ", ".join(ast.unparse(key) for key in keys if key) + "}"
    return ast.unparse(node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _public(name: str) -> bool:
    return not name.startswith("_") or name == "__call__"


if __name__ == "__main__":
    print(contract_text(), end="")
