"""Make the libraries: what torch_npu's libraries miss and no other library of the process brings.

What `runtime.c` and `collectives.c` do not define becomes a function that returns 0, which is the
runtime's word for success, or a table of zeros where C++ wants a type's description.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = ("runtime.c", "collectives.c")
MAIN = "libascendcl.so"
"""The one with the functions; the others need it and are empty."""
_ASKED_FOR = re.compile(rb"\x00((?:acl(?!nn)|Hccl)[A-Z_a-z][A-Za-z0-9]+)(?=\x00)")
"""Names that torch_npu looks up while it runs, which no table of symbols tells."""
_LANGUAGE = ("Py", "_Py", "_ITM", "__gmon", "__cxa_finalize")
_SYSTEM = ("libstdc++.so.6", "libm.so.6", "libc.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2")
_FOLDERS = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64")
_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")


def build(package: Path, torch_lib: Path, cache: Path) -> list[Path]:
    """The libraries for this torch_npu, the one with the functions first.

    They are made once for each state of their sources; needs gcc, nm and readelf.
    """
    libraries = sorted(package.glob("lib/*.so")) + sorted(package.glob("_C*.so"))
    state = hashlib.sha256((package / "version.py").read_bytes())
    for name in (*SOURCES, Path(__file__).name):
        state.update((HERE / name).read_bytes())
    folder = cache / state.hexdigest()[:16]
    names = sorted(_needed(libraries) - {MAIN})
    made = [folder / MAIN, *(folder / name for name in names)]
    if not all(path.exists() for path in made):
        folder.mkdir(parents=True, exist_ok=True)
        generated = folder / "rest.c"
        generated.write_text(_rest(_missing(libraries, torch_lib)))
        _compile(folder / MAIN, [*(HERE / name for name in SOURCES), generated], ["-lrt"])
        for path in made[1:]:
            _compile(path, [], [f"-L{folder}", "-Wl,--no-as-needed", "-lascendcl"])
    return made


def _needed(libraries: Iterable[Path]) -> set[str]:
    """Those of CANN: neither torch's, nor the system's, nor torch_npu's own."""
    found = {name for path in libraries for name in _NEEDED.findall(_run("readelf", "-d", path))}
    cann = ("libhccl", "libascendcl", "libacl_", "libge_", "libgraph", "libatb")
    return {name for name in found if name.startswith(cann)}


def _missing(libraries: list[Path], torch_lib: Path) -> list[str]:
    wanted = set().union(*(_symbols(path, "--undefined-only") for path in libraries))
    main = next(path for path in libraries if path.name == "libtorch_npu.so")
    wanted |= {name.decode() for name in _ASKED_FOR.findall(main.read_bytes())}
    system = [
        next((Path(f) / name for f in _FOLDERS if (Path(f) / name).exists()), None)
        for name in _SYSTEM
    ]
    others = [*libraries, *torch_lib.glob("*.so*"), *(path for path in system if path)]
    brought = set().union(*(_symbols(path, "--defined-only") for path in others))
    return sorted(name for name in wanted - brought if not name.startswith(_LANGUAGE))


def _rest(names: Iterable[str]) -> str:
    """C for what the sources do not define."""
    text = "\n".join((HERE / name).read_text() for name in SOURCES)
    defined = set(re.findall(r"^\w[\w *]*?\b(\w+)\(", text, re.MULTILINE))
    lines = []
    for name in names:
        if name in defined:
            continue
        table = name.startswith(("_ZTI", "_ZTV", "_ZTS"))
        lines.append(f"void* {name}[64];" if table else f"long {name}(void) {{ return 0; }}")
    return "\n".join(lines) + "\n"


def _symbols(path: Path, which: str) -> set[str]:
    lines = _run("nm", "-D", which, path).splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines if line.strip()}


def _compile(path: Path, sources: list[Path], options: list[str]) -> None:
    inputs = [str(source) for source in sources] or ["-x", "c", "/dev/null", "-x", "none"]
    partial = path.with_suffix(".partial")
    flags = ["-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{path.name}"]
    _run("gcc", *flags, "-o", partial, *inputs, *options)
    partial.rename(path)  # so that a process beside this one never sees half a file


def _run(*command: object) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
