"""What those who run a server may do to it; off unless `--admin` is given."""

from __future__ import annotations
