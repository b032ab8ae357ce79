"""The command line as a user meets it: help, errors, exit codes, speed of start."""

from __future__ import annotations

import io
import subprocess
import sys
import time
import types

import pytest

from allmetal import __version__, cli
from allmetal.errors import ConfigError, ModelError

HEAVY = ("torch", "numpy", "zmq", "tokenizers", "jinja2", "starlette", "uvicorn")


def allmetal(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "allmetal", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_names_every_command() -> None:
    done = allmetal("--help")

    assert done.returncode == 0
    for name, summary in cli.COMMANDS.items():
        assert name in done.stdout
        assert summary.split()[0] in done.stdout


def test_version() -> None:
    assert f"allmetal {__version__}\n" == allmetal("--version").stdout


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["serve", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom allmetal.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit: pass\n"
        f"print('loaded:', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.endswith("loaded: []\n")


def test_help_is_there_within_200_ms() -> None:
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        allmetal("--help")
        times.append(time.perf_counter() - begin)

    assert min(times) < 0.2  # the least disturbed of five


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = allmetal(command, "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert cli.COMMANDS[command].split()[0] in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "error: the following arguments are required: COMMAND"),
        (["fly"], "error: argument COMMAND: invalid choice: 'fly'"),
        (["run"], "error: the following arguments are required: MODEL"),
        (["run", "m", "p", "--block-size", "0"], "error: block_size must be at least 1, not 0"),
        (["run", "m", "p", "--dtype", "int3"], "error: argument --dtype: invalid choice"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_says_why(words: list[str], said: str) -> None:
    done = allmetal(*words)

    assert done.returncode == 2
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


def test_a_model_that_is_not_there_exits_with_1_and_a_hint() -> None:
    done = allmetal("run", "no/such/folder", "hello")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "\nhint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_where_an_error_came_from() -> None:
    done = allmetal("run", "no/such/folder", "hello", "--debug")

    assert done.returncode == 1
    assert "Traceback" in done.stderr


class Command:
    """A command that does as told."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def add_arguments(self, parser: object) -> None: ...

    def execute(self, args: object) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("a b", hint="--c"), 2, "error: a b\nhint: --c\n"),
        (ModelError("no model"), 1, "error: no model\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (ZeroDivisionError("x"), 1, "error: ZeroDivisionError: x\nhint: "),
    ],
)
def test_errors_become_exit_codes(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "allmetal.cli.run", Command(error))  # type: ignore[arg-type]

    assert code == cli.main(["run"])
    assert capsys.readouterr().err.startswith(said)


def test_debug_lets_an_error_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "allmetal.cli.run", Command(ModelError("m")))  # type: ignore[arg-type]

    with pytest.raises(ModelError):
        cli.main(["run", "--debug"])


@pytest.mark.parametrize(
    "words", [["--threads", "0"], ["--threads", "100000"], ["--seed", str(10**30)]]
)
def test_a_number_no_machine_has_use_for_is_refused(words: list[str]) -> None:
    done = allmetal("run", "model", "hello", *words)

    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {words[0].removeprefix('--')} must")


def test_a_terminal_that_lacks_a_character_gets_a_question_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    command = types.SimpleNamespace(
        add_arguments=lambda parser: None, execute=lambda args: print("na\u00efve") or 0
    )
    monkeypatch.setitem(sys.modules, "allmetal.cli.doctor", command)

    assert cli.main(["doctor"]) == 0
    assert raw.getvalue() == b"na?ve\n"
