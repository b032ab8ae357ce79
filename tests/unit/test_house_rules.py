"""Rules of the house that no linter knows. CONTRIBUTING.md states them for people."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARIES = [
    *(ROOT / name for name in ("core/allmetal", "models/allmetal_models")),
    ROOT / "plugins/allmetal_plugins",
    *sorted((ROOT / "platforms").glob("*/allmetal_*")),
]
NEUTRAL = LIBRARIES[:2]

VENDOR_WORD = re.compile(
    r"(?<![a-z])(cuda|rocm|hip|xpu|npu|ascend|tpu|nvidia|amd)(?![a-z])", re.IGNORECASE
)
MACHINE_PATH = re.compile(r"(?<![\w./~-])/(work|home|root|tmp|Users|mnt)/\w")

MAX_FILE, MAX_FUNCTION = 400, 60
LONGER_FILES: dict[str, str] = {}
"""Path from the root -> why it may be longer."""
LONGER_FUNCTIONS: dict[str, str] = {
    "platforms/cuda/allmetal_cuda/jit/hopper_attention.py::_unit": (
        "one unit of a warp group, whose values stay in registers across its loops: not to be cut"
        " without a card to run it on"
    ),
}
"""Path::qualified name -> why it may be longer."""
ENVIRONMENT_READERS = {
    "core/allmetal/config.py": "the one place where settings come from outside",
}

OWN_IMPORTS = {
    "core/allmetal/errors.py": set[str](),
    "core/allmetal/platform/contract.py": set[str](),
    "core/allmetal/constraint.py": {"allmetal.errors"},
    "core/allmetal/request.py": {"allmetal.constraint", "allmetal.errors"},
}
"""The files that everything rests on -> what they may import of ours."""


def python_files() -> list[Path]:
    return sorted(p for folder in LIBRARIES for p in folder.rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """(qualified name, lines) of every function, nested ones included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield name, (node.end_lineno or node.lineno) - node.lineno + 1
            yield from functions(node, f"{name}.")
        else:
            yield from functions(node, prefix)


def environment_reads(tree: ast.AST) -> Iterator[int]:
    """Line numbers."""
    names = {"environ", "environb", "getenv", "getenvb"}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=attr) if attr in names:
                yield node.lineno
            case ast.ImportFrom(module="os", names=imported):
                if any(alias.name in names for alias in imported):
                    yield node.lineno


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules imported anywhere in a file, also inside functions."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, level=level):
                yield "." * level + (module or "")


def test_the_libraries_are_where_these_rules_look() -> None:
    found = {folder.name for folder in LIBRARIES if (folder / "py.typed").is_file()}

    assert {"allmetal", "allmetal_models", "allmetal_plugins", "allmetal_cpu"} <= found
    assert len(found) == len(LIBRARIES)
    assert len(python_files()) > 30


def test_core_and_models_name_no_vendor() -> None:
    named = []
    for folder in NEUTRAL:
        for path in (p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc"):
            lines = [path.name, *path.read_text(errors="ignore").splitlines()]
            named += [f"{relative(path)}:{n}" for n, s in enumerate(lines) if VENDOR_WORD.search(s)]

    assert named == []


@pytest.mark.parametrize("line", ["x.is_cuda()", "ROCm", "the NPU", "_hip_", "torch.xpu.f"])
def test_a_vendors_name_is_noticed(line: str) -> None:
    assert VENDOR_WORD.search(line)


@pytest.mark.parametrize("line", ["ascending", "relationship", "input", "cpu", "tpus_of_x"])
def test_other_words_are_not_taken_for_vendors(line: str) -> None:
    assert not VENDOR_WORD.search(line)


def test_only_config_reads_the_environment() -> None:
    reads = {
        relative(path): lines
        for path in python_files()
        if (lines := list(environment_reads(ast.parse(path.read_text()))))
    }

    assert {p: n for p, n in reads.items() if p not in ENVIRONMENT_READERS} == {}


@pytest.mark.parametrize(
    "code", ["os.environ['A']", "os.getenv('A')", "from os import environ", "f(os.environ)"]
)
def test_reading_the_environment_is_noticed(code: str) -> None:
    assert list(environment_reads(ast.parse(code)))


@pytest.mark.parametrize("path", OWN_IMPORTS)
def test_the_files_that_all_rest_on_import_next_to_nothing_of_ours(path: str) -> None:
    ours = {m for m in imports(ast.parse((ROOT / path).read_text())) if m.startswith(("allm", "."))}

    assert ours <= OWN_IMPORTS[path]


def test_files_fit_and_no_exception_is_stale() -> None:
    long = {
        relative(path): lines
        for path in python_files()
        if (lines := len(path.read_text().splitlines())) > MAX_FILE
    }

    assert long.keys() == LONGER_FILES.keys(), long


def test_functions_fit_a_screen_and_no_exception_is_stale() -> None:
    long = {
        f"{relative(path)}::{name}": lines
        for path in python_files()
        for name, lines in functions(ast.parse(path.read_text()))
        if lines > MAX_FUNCTION
    }

    assert long.keys() == LONGER_FUNCTIONS.keys(), long


def test_every_library_file_postpones_annotations() -> None:
    without = [
        relative(path)
        for path in python_files()
        if "from __future__ import annotations\n" not in path.read_text()
    ]

    assert without == []


def test_every_package_folder_has_an_init() -> None:
    without = {
        relative(path.parent)
        for path in python_files()
        if not (path.parent / "__init__.py").is_file()
    }

    assert without == set()


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    folders = ["core", "models", "plugins", "platforms", "tests", "examples", "docs", ".ci"]
    files = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.is_file()]
    files += [p for p in ROOT.iterdir() if p.is_file()]
    kept = (".py", ".md", ".toml", ".json", ".html", ".cpp", "Makefile", "run")
    named = [
        f"{relative(path)}:{n}"
        for path in files
        if path.name.endswith(kept) and path != Path(__file__)
        for n, line in enumerate(path.read_text(errors="ignore").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]

    assert named == []


def test_all_distributions_have_one_version() -> None:
    source = (ROOT / "core/allmetal/__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert version is not None

    for path in sorted((ROOT / "platforms").glob("*/pyproject.toml")):
        project = tomllib.loads(path.read_text())["project"]
        assert version[1] == project["version"], path
        assert f"allmetal=={version[1]}" in project["dependencies"], path


def distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in requirements}


def test_the_core_imports_what_it_declares_and_declares_what_it_imports() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = distributions(pyproject["project"]["dependencies"])
    extras = pyproject["tool"]["hatch"]["metadata"]["hooks"]["custom"]["extras"]
    asked = [*extras["kit"], *extras["bench"], *extras["grpc"], *extras["otel"]]
    asked += extras["structured"]
    module = {
        "pyzmq": "zmq",
        "opentelemetry_sdk": "opentelemetry",
        "opentelemetry_exporter_otlp_proto_http": "opentelemetry",
        "grpcio": "grpc",
        "grpcio_health_checking": "grpc_health",
        "grpcio_reflection": "grpc_reflection",
        "protobuf": "google",
    }
    brought = {"torch"} | {
        module.get(name, name) for name in distributions(asked)
    }  # by platforms; by those who ask for an extra
    imported = {
        name.split(".")[0]
        for folder in LIBRARIES[:3]
        for path in folder.rglob("*.py")
        for name in imports(ast.parse(path.read_text()))
        if not name.startswith(("allmetal", "."))
    } - sys.stdlib_module_names

    by_name = {"httptools"}  # uvicorn's option names it
    assert {module.get(name, name) for name in declared} == (imported - brought) | by_name


def test_the_changelog_knows_the_version() -> None:
    source = (ROOT / "core/allmetal/__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert version is not None

    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_platform_folder_is_an_extra_and_an_entry_point() -> None:
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = root["tool"]["hatch"]["metadata"]["hooks"]["custom"]["platforms"]
    folders = {}
    for path in (ROOT / "platforms").glob("*/pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        folders[path.parent.name] = project.get("entry-points", {}).get("allmetal.platforms", {})

    assert folders.pop("triton") == {}  # kernels that platforms share, not a platform
    assert sorted(folders) == sorted(extras)
    assert all(list(entry) == [name] for name, entry in folders.items())
