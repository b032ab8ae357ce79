"""The contract that strangers rely on does not change by accident."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from contract_text import contract_text, signatures

from allmetal.platform.adapters import ADAPTERS
from allmetal.platform.contract import CONTRACT_VERSION

HERE = Path(__file__).parent
WHAT_TO_DO = """
The contract that plugins are written for has changed, as shown above. Undo it, or:

- if every plugin that keeps the recorded contract still works, unchanged and unaware, say so in
  CHANGELOG.md and record it anew:

      python tests/support/contract_text.py > tests/contract/contract_v{version}.txt

  A new optional answer with a default is such a change. A new field of a spec is not: a kernel
  that does not know the field would claim the problem and solve another.

- if not: set CONTRACT_VERSION to {next} in allmetal.platform.contract; in adapters.py beside it
  write what makes a platform of contract {version} keep contract {next}, and drop the adapter
  before; record it as tests/contract/contract_v{next}.txt and leave contract_v{version}.txt alone.

While no release has carried contract {version}, the first is enough whatever the change.
"""


def recorded(version: int) -> Path:
    return HERE / f"contract_v{version}.txt"


def changes(before: str, now: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), now.splitlines(), "recorded", "now", lineterm="", n=1
    )
    return "\n".join(lines)


def test_the_contract_is_as_it_was_recorded() -> None:
    difference = changes(recorded(CONTRACT_VERSION).read_text(), contract_text())
    advice = WHAT_TO_DO.format(version=CONTRACT_VERSION, next=CONTRACT_VERSION + 1)
    if difference:
        pytest.fail(f"{difference}\n{advice}", pytrace=False)


def test_every_contract_so_far_is_on_record() -> None:
    files = {path.name for path in HERE.glob("contract_v*.txt")}
    assert {recorded(version).name for version in range(1, CONTRACT_VERSION + 1)} == files


def test_the_contract_before_has_an_adapter() -> None:
    assert ([CONTRACT_VERSION - 1] if CONTRACT_VERSION > 1 else []) == list(ADAPTERS)


SOURCE = '''
LIMIT = 3
"""What it is."""
FAMILIES: Mapping[str, str] = {"a": "the first", "b": "the second"}

@dataclass(frozen=True)
class Answer:
    """An answer."""
    rank: int = 0
    why: str  # not empty

class Device(Protocol):
    @property
    def name(self) -> str: ...
    def open(self, index: int, *, quick: bool = True) -> Answer:
        """Opens it."""
        ...
    def __call__(self, x: Tensor) -> Tensor: ...

def _private() -> None: ...
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ('"b": "the second"', '"c": "the second"'),
        ("frozen=True", "frozen=False"),
        ("rank: int = 0", "rank: int = 1"),
        ("rank: int = 0", "rank: float = 0"),
        ("why: str", "reason: str"),
        ("    @property\n", ""),
        ("quick: bool = True", "quick: bool"),
        ("*, quick", "quick"),
        ("-> Answer:", "-> Answer | None:"),
        ("x: Tensor) ->", "x: Tensor, out: Tensor) ->"),
        ("class Device(Protocol)", "class Device(Answer, Protocol)"),
    ],
)
def test_any_change_of_a_signature_is_noticed(old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert signatures(SOURCE) != signatures(SOURCE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("What it is", "What it was"),
        ("the second", "number two"),
        ("  # not empty", ""),
        ("Opens it", "Shuts it"),
        ("_private() -> None", "_private(x: int) -> str"),
    ],
)
def test_words_and_private_names_may_change(old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert signatures(SOURCE) == signatures(SOURCE.replace(old, new))
