"""Results of benchmarks beside each other: by how much they differ, and if it may be said."""

from __future__ import annotations
