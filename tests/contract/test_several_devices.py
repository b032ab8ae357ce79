"""Level 3 of the kit, on pretend devices: right links pass, wrong ones are caught and named."""

from __future__ import annotations

import pytest
import several
from several import Several

from allmetal.platform.contract import Communicator
from allmetal.testing.kit import run_kit
from allmetal.testing.reference_platform import ReferencePlatform

REDUCE = "test_all_reduce_sums_over_the_ranks"
BITS = "test_every_rank_gets_the_same_bits"
GATHER = "test_all_gather_puts_ranks_one_behind_the_other"
BROADCAST = "test_broadcast_gives_what_its_root_has"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_devices_with_right_links_pass() -> None:
    made = run_kit(Several(), levels=(3,))

    assert made.green, made.failed()
    assert {"passed"} == {result.outcome for result in made.results}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("link", "select", "named_by"),
    [
        (several.Averages, "all_reduce", {REDUCE}),
        (several.Transposes, "all_gather", {GATHER}),
        (several.OwnRoot, "broadcast", {BROADCAST}),
        (several.Drifts, "bits", {BITS}),
        (several.Dies, "bits", {BITS}),
    ],
)
def test_a_wrong_link_is_caught_and_named(
    link: type[Communicator], select: str, named_by: set[str]
) -> None:
    made = run_kit(Several(link=link), levels=(3,), select=select)

    assert named_by == {result.test for result in made.failed()}


def test_one_device_or_none_with_links_skips_with_the_reason() -> None:
    alone = run_kit(Several(num_devices=1), levels=(3,))
    unlinked = run_kit(ReferencePlatform(), levels=(3,))

    assert {"needs two devices of reference: there is 1"} == {r.reason for r in alone.results}
    assert {"needs collective.all_reduce: the platform does not say"} == {
        result.reason for result in unlinked.results
    }
