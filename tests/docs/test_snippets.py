"""Every command and every Python snippet in the documentation, run.

A fence in `bash` or `python` is run; fences of one file share a folder and run in order. Python
fences of a file share their names. `{background}` starts a server and waits for it, `{server}`
runs against it. A `{file}` is written to where its first line, a comment, says; what a page with
such files installs stays in its folder. A fence that cannot be run has `<!-- not run: REASON -->`
in the line above.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "platforms").glob("*/README.md")),
]
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.*?) -->\n)?```(?P<kind>\w+)(?: \{(?P<mark>\w+)\})?\n"
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
OUTPUT = {"text", "json"}
"""Kinds of fences that show something instead of doing it."""
INSTALL_HERE = {
    "PIP_TARGET": "site",
    "PIP_UPGRADE": "1",
    "PIP_NO_INDEX": "1",
    "PIP_NO_DEPS": "1",
    "PIP_NO_BUILD_ISOLATION": "0",  # which is how pip wants to be told
    "PIP_QUIET": "1",
}
STARTUP_SECONDS = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    kind: str
    mark: str | None
    code: str
    reason: str | None
    line: int


def fences(text: str) -> list[Fence]:
    return [
        Fence(
            kind=m["kind"],
            mark=m["mark"],
            code=m["code"],
            reason=m["reason"],
            line=text.count("\n", 0, m.start("kind")) + 1,
        )
        for m in FENCE.finditer(text)
    ]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def environment(cwd: Path) -> dict[str, str]:
    """Commands find this interpreter's scripts first, no hub, and what was installed in `cwd`."""
    folder = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # where nothing else says how many; the machine may be busy
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **({"PYTHONPATH": str(cwd / "site"), **INSTALL_HERE} if (cwd / "site").is_dir() else {}),
    }


def run(command: list[str], cwd: Path, what: str) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=environment(cwd), text=True, capture_output=True, timeout=300
    )
    assert done.returncode == 0, f"{what}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@contextmanager
def server(command: str, cwd: Path) -> Iterator[None]:
    """Runs a fence in the background until the file ends; its port is in the command."""
    port = re.search(r"--port (\d+)", command)
    assert port is not None, f"a server's fence names its port: {command}"
    log = cwd / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=cwd,
            env=environment(cwd),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        wait_until_healthy(process, int(port[1]), log)
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
            pytest.fail(f"the server did not end when interrupted\n{log.read_text()[-4000:]}")


def wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"no server on port {port}\n{log.read_text()[-4000:]}")


def write(code: str, cwd: Path) -> None:
    comment, _, content = code.partition("\n")
    place = cwd / comment.removeprefix("# ")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content)
    (cwd / "site").mkdir(exist_ok=True)


def run_file(path: Path, cwd: Path) -> None:
    earlier_python = ""
    running = None
    try:
        for fence in fences(path.read_text()):
            what = f"{path}:{fence.line}"
            if fence.reason or fence.kind in OUTPUT:
                continue
            if fence.mark == "file":
                write(fence.code, cwd)
            elif fence.mark == "background":
                running = server(fence.code, cwd)
                running.__enter__()
            elif fence.kind == "python":
                earlier_python += fence.code + "\n"
                run([sys.executable, "-c", earlier_python], cwd, what)
            else:
                run(["bash", "-euo", "pipefail", "-c", fence.code], cwd, what)
    finally:
        if running is not None:
            running.__exit__(None, None, None)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "path", [p for p in FILES if any(not f.reason for f in fences(p.read_text()))], ids=name
)
def test_every_snippet_runs(path: Path, tmp_path: Path) -> None:
    run_file(path, tmp_path)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_fence_has_a_known_kind_and_every_exception_a_reason(path: Path) -> None:
    text = path.read_text()
    found = fences(text)

    assert text.count("\n```") == 2 * len(found), "a fence without a kind, or one that never ends"
    assert {f.kind for f in found if f.mark != "file"} <= {"bash", "python", *OUTPUT}
    assert all(re.match(r"# [\w./]+\n", f.code) for f in found if f.mark == "file")
    assert all(f.reason is None or len(f.reason) > 10 for f in found)
    if any(f.mark == "server" for f in found):
        assert any(f.mark == "background" for f in found)


def test_the_strangers_files_on_the_page_are_those_that_are_tested() -> None:
    tested = {path.read_text() for path in (ROOT / "tests/plugin").glob("[1-4]_*/**/*.*")}
    tested.add((ROOT / "tests/plugin/test_acme.txt").read_text())
    shown = [f for f in fences((ROOT / "docs/write-a-platform.md").read_text()) if f.mark == "file"]

    assert len(shown) > 5
    assert [] == [f.line for f in shown if f.code.partition("\n")[2] not in tested]


def test_a_failing_command_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\ntrue\nfalse\ntrue\n```\n")

    with pytest.raises(AssertionError, match=r"page\.md:1"):
        run_file(page, tmp_path)


def test_links_between_pages_lead_somewhere() -> None:
    dead = [
        f"{name(path)}: {target}"
        for path in FILES
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
        if not (path.parent / target).exists()
    ]

    assert dead == []
