"""`python -m allmetal` is the `allmetal` command."""

from __future__ import annotations

from allmetal.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
