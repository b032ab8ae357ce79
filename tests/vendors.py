"""Run the tests that need a vendor's own software, each in an environment made for it.

    python tests/vendors.py [NAME ...] [--slow] [-- PYTEST ARGUMENTS]

A folder `platforms/NAME/tests/vendor` (or a folder in it, where a vendor's packages exclude each
other) with a `requirements.txt` is an environment. It lies over the one that runs this script, so
that torch is there once, and its packages come alone (`--no-deps`): they would bring builds of
torch, or of Triton, that this host has no use for.

Where packages cannot be had the environment's tests are left out, and the last lines say so;
`--strict` makes that a failure.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One vendor's packages, and the folder of tests that need them."""

    name: str
    tests: Path

    @property
    def folder(self) -> Path:
        return ROOT / ".vendors" / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def requirements(self) -> Path:
        return self.tests / "requirements.txt"


def environments() -> list[Environment]:
    """All there are, by name."""
    found: list[Environment] = []
    for file in sorted(ROOT.glob("platforms/*/tests/vendor/**/requirements.txt")):
        platform, _, *inner = file.parent.relative_to(ROOT / "platforms").parts
        found.append(Environment(name="-".join([platform, *inner[1:]]), tests=file.parent))
    return found


def install(environment: Environment) -> str | None:
    """Make the environment unless it stands; why it cannot be had, or None."""
    wanted = hashlib.sha256(environment.requirements.read_bytes() + sys.version.encode())
    stamp = environment.folder / ".installed"
    if stamp.exists() and stamp.read_text() == wanted.hexdigest():
        return None
    shutil.rmtree(environment.folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", environment.folder], check=True)
    _lay_over(environment)
    pip = [str(environment.python), "-m", "pip", "install", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*pip, "-r", str(environment.requirements)], capture_output=True, text=True
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        return said[-1] if said else f"pip ended with {done.returncode}"
    stamp.write_text(wanted.hexdigest())
    return None


def _lay_over(environment: Environment) -> None:
    # The vendor's own folder comes first on the path, so its packages hide those below.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = environment.folder / "lib" / version / "site-packages"
    below = sysconfig.get_path("purelib")
    (site / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")


def run(environment: Environment, arguments: Sequence[str]) -> int:
    """pytest's exit status."""
    nested = [
        f"--ignore={other.tests}"
        for other in environments()
        if environment.tests in other.tests.parents
    ]
    pytest = [str(environment.python), "-m", "pytest", "-q", str(environment.tests), *nested]
    seen = ["-o", "norecursedirs=.* build"]  # `make test` leaves folders named vendor out
    return subprocess.run([*pytest, *seen, *arguments], cwd=ROOT).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help="environments; all by default")
    parser.add_argument("--slow", action="store_true", help="slow tests too")
    parser.add_argument("--list", action="store_true", help="name the environments and end")
    parser.add_argument("--strict", action="store_true", help="fail where packages are missing")
    own, arguments = sys.argv[1:], []
    if "--" in own:
        cut = own.index("--")
        own, arguments = own[:cut], own[cut + 1 :]
    options = parser.parse_args(own)
    known = {environment.name: environment for environment in environments()}
    if unknown := sorted(set(options.names) - set(known)):
        parser.error(f"no environment {', '.join(unknown)}; there are: {', '.join(known)}")
    chosen = options.names or list(known)
    if options.list:
        print("\n".join(chosen))
        return 0
    if not options.slow:
        arguments = ["-m", "not slow", *arguments]
    lines, failed = [], False
    for name in chosen:
        begun = time.monotonic()
        missing = install(known[name])
        installed = time.monotonic()
        status = 0 if missing else run(known[name], arguments)
        bad = status != 0 or bool(missing and options.strict)
        failed |= bad
        word = f"left out: {missing}" if missing else "FAILED" if bad else "passed"
        times = f"installed in {installed - begun:.0f} s, ran {time.monotonic() - installed:.0f} s"
        lines.append(f"{name}: {word} ({times})")
    print("\n".join(["", "With vendors' software:", *lines]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
