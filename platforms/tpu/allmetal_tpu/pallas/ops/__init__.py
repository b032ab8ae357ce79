"""What the platform offers of these kernels: each answers for a problem, and builds a torch op."""

from __future__ import annotations
