"""Level 3: several devices, each with a rank of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from allmetal.platform.capabilities import available, capability, describe
from allmetal.platform.contract import DeviceInfo, Platform
from allmetal.testing.conformance import ranks
from allmetal.testing.conformance.base import Conformance, covers
from allmetal.testing.conformance.engines import expected, random_prompt
from allmetal.testing.conformance.tiny_models import KINDS, Kind, save_model

MOST = 4
SHARED = [kind for kind in KINDS if kind.name in ("dense", "window-and-full")]
_OPS = ("collective.all_reduce", "collective.all_gather")


class DevicesConformance(Conformance):
    """Override `rank_devices` where one device takes several ranks."""

    level = 3

    @pytest.fixture
    def rank_devices(self, platform: Platform, device_info: DeviceInfo) -> Sequence[DeviceInfo]:
        """One a rank: those that were probed, up to four."""
        found = platform.probe()
        assert isinstance(found, list | tuple)
        return found[:MOST]

    @pytest.fixture
    def group(
        self, platform: Platform, device_info: DeviceInfo, rank_devices: Sequence[DeviceInfo]
    ) -> Sequence[DeviceInfo]:
        table = platform.capabilities(device_info)
        for feature in _OPS:
            answer = capability(table, feature)
            if not available(answer):
                pytest.skip(f"needs {feature}: {describe(answer)}")
        if len(rank_devices) < 2:
            pytest.skip(f"needs two devices of {platform.name}: there is {len(rank_devices)}")
        return rank_devices

    @covers("collective.all_reduce")
    def test_all_reduce_sums_over_the_ranks(
        self, platform: Platform, group: Sequence[DeviceInfo]
    ) -> None:
        hold(platform, group, ranks.all_reduce)

    @covers("collective.all_reduce")
    def test_every_rank_gets_the_same_bits(
        self, platform: Platform, group: Sequence[DeviceInfo]
    ) -> None:
        hold(platform, group, ranks.same_bits)

    @covers("collective.all_gather")
    def test_all_gather_puts_ranks_one_behind_the_other(
        self, platform: Platform, group: Sequence[DeviceInfo]
    ) -> None:
        hold(platform, group, ranks.all_gather)

    def test_broadcast_gives_what_its_root_has(
        self, platform: Platform, group: Sequence[DeviceInfo]
    ) -> None:
        hold(platform, group, ranks.broadcast)

    @covers(*_OPS)
    @pytest.mark.parametrize("kind", SHARED, ids=str)
    def test_a_model_that_ranks_share_chooses_the_references_tokens(
        self, platform: Platform, group: Sequence[DeviceInfo], kind: Kind, tmp_path: Path
    ) -> None:
        """Of two ranks: what divides among more is another model's affair."""
        prompt = random_prompt(41, 0)
        right = expected(kind, "float32", prompt, 24)
        folder = str(save_model(kind, tmp_path))
        job = (ranks.greedy, "float32", platform, folder, prompt, right)
        hold(platform, group[:2], *job)


def hold(platform: Platform, devices: Sequence[DeviceInfo], job: ranks.Job, *rest: object) -> None:
    found = ranks.on_ranks(platform, devices, job, *rest)
    assert not found, "\n".join(found)
