"""Whether Triton can launch: it has a C compiler build its driver's door when it is first used."""

from __future__ import annotations

from allmetal.errors import PlatformError


def check_launcher(name: str) -> None:
    """Raises PlatformError for the device of that name where what launches cannot be built.

    Nothing is said of a Triton that is not there: whoever asks for its kernels does.
    """
    try:
        from triton.runtime import driver
    except ImportError:
        return
    try:
        getattr(driver.active, "utils")  # noqa: B009 - for what it builds
    except Exception as error:  # no compiler, no headers, no driver: each with a class of its own
        lines = str(error).splitlines() or [type(error).__name__]
        raise PlatformError(
            f"{name} cannot be used: Triton cannot build what launches its kernels: {lines[0]}",
            hint="install a C compiler (gcc) and Python's headers (python3-dev)",
        ) from error
