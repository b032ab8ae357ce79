"""Which platform is chosen, and that hardware is never silently left for the host."""

from __future__ import annotations

import pytest

from allmetal.errors import ConfigError, PlatformError
from allmetal.platform.contract import Absent, Broken, DeviceInfo
from allmetal.platform.discover import Denied, Failed, Found, NotInstalled, State
from allmetal.platform.hints import HardwareHint
from allmetal.platform.null import NullPlatform
from allmetal.platform.pick import select_device, select_platform, troubles

HINT = HardwareHint(platform="fast", seen="a fast thing at slot 3")


def found(name: str, state: State | str) -> Found:
    """`state` as a word is the kind of its one device."""
    if isinstance(state, str):
        traits = {"kind": state} if state else {}
        state = (DeviceInfo(index=0, name=f"{name} 9000", total_memory=1, traits=traits),)
    return Found(name=name, origin="it 1.0", state=state, platform=NullPlatform())


HOST = found("host", "host")
FAST = found("fast", "accelerator")


def test_an_accelerator_wins_over_the_host() -> None:
    assert select_platform("auto", [HOST, FAST]) is FAST
    assert select_platform("auto", [FAST, HOST]) is FAST
    unsaid = found("unsaid", "")
    assert select_platform("auto", [HOST, unsaid]) is unsaid


def test_the_host_is_taken_where_nothing_else_was_seen() -> None:
    others = [found("fast", Absent("none")), found("pretend", "pretend")]
    assert select_platform("auto", [*others, HOST]) is HOST


def test_two_accelerators_are_ambiguous() -> None:
    with pytest.raises(ConfigError, match="ambiguous") as error:
        select_platform("auto", [FAST, found("other", "accelerator"), HOST])
    assert error.value.hint == "--platform fast or --platform other"


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (NotInstalled('pip install "allmetal[fast]"'), 'pip install "allmetal[fast]"'),
        (Failed("ImportError: libfast"), "ImportError: libfast"),
        (Broken("its driver is missing"), "its driver is missing"),
    ],
)
def test_hardware_without_a_working_plugin_is_an_error_unless_a_platform_is_said(
    state: State, says: str
) -> None:
    platforms = [found("fast", state), HOST]
    with pytest.raises(PlatformError) as error:
        select_platform("auto", platforms, [HINT])
    assert says in error.value.message
    assert error.value.hint == "mend it, or say --platform host"
    assert select_platform("host", platforms, [HINT]) is HOST


def test_hardware_of_a_platform_nobody_knows_is_an_error_too() -> None:
    with pytest.raises(PlatformError, match=r'slot 3: pip install "allmetal\[fast\]"'):
        select_platform("auto", [HOST], [HINT])


@pytest.mark.parametrize("state", [Absent("not for us"), Denied("denied")])
def test_a_plugin_that_looked_or_was_denied_outweighs_a_hint(state: State) -> None:
    assert select_platform("auto", [found("fast", state), HOST], [HINT]) is HOST


def test_the_host_never_stands_in_for_a_plugin_that_cannot_be_asked() -> None:
    platforms = [found("fast", Failed("ImportError: libfast")), HOST]
    with pytest.raises(PlatformError, match="ImportError: libfast") as error:
        select_platform("auto", platforms)
    assert error.value.hint == "mend it, or say --platform host"
    assert select_platform("host", platforms) is HOST
    assert select_platform("auto", [*platforms, found("other", "accelerator")]).name == "other"


def test_unused_hardware_beside_a_working_accelerator_is_a_note() -> None:
    platforms = [FAST, found("other", Broken("no driver")), HOST]
    assert select_platform("auto", platforms) is FAST
    assert troubles(platforms) == ["other: no driver"]


@pytest.mark.parametrize(
    ("state", "says", "hint"),
    [
        (NotInstalled("pip install it"), "not installed", "pip install it"),
        (Failed("ImportError: libfast"), "ImportError: libfast", "doctor"),
        (Absent("no such thing"), "no such thing", "allmetal matrix --platform fast"),
        (Broken("no driver"), "no driver", None),
        (Denied("denied by X"), "denied by X", None),
    ],
)
def test_a_platform_that_is_said_and_cannot_be_used_says_why(
    state: State, says: str, hint: str | None
) -> None:
    with pytest.raises(PlatformError, match=says) as error:
        select_platform("fast", [found("fast", state), HOST])
    assert (hint or "") in (error.value.hint or "")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as error:
        select_platform("quick", [FAST, HOST])
    assert error.value.hint == "there are: fast, host"


def test_nothing_at_all_says_what_to_install() -> None:
    with pytest.raises(PlatformError, match="fast: it is not installed") as error:
        select_platform("auto", [found("fast", NotInstalled("pip install fast"))])
    assert error.value.hint == "pip install fast"


def test_a_device_that_is_not_there_names_those_that_are() -> None:
    assert select_device(FAST, 0).name == "fast 9000"
    with pytest.raises(ConfigError) as error:
        select_device(FAST, 1)
    assert error.value.hint == "--device is one of: 0 (fast 9000)"
