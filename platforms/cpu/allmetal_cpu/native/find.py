"""Where the C++ library is.  No torch here: capabilities are asked for before it is needed."""

from __future__ import annotations

from pathlib import Path

from allmetal.platform.contract import Unsupported


def find() -> Path | Unsupported:
    import allmetal_cpu

    # An editable install puts what was built into another folder of the same package.
    places = [Path(folder) / "liballmetal_cpu.so" for folder in allmetal_cpu.__path__]
    return next(
        (place for place in places if place.exists()),
        Unsupported(
            "native library not built: install a C++ compiler, then reinstall allmetal-cpu"
        ),
    )
