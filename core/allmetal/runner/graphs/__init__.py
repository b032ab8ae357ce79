"""Steps recorded once and replayed, so that the host launches one thing instead of hundreds."""

from __future__ import annotations

from allmetal.runner.graphs.decode import DecodeGraphs, Replayed
from allmetal.runner.graphs.mixed import MixedGraphs
from allmetal.runner.graphs.steps import StepGraphs, record_steps

__all__ = ["DecodeGraphs", "MixedGraphs", "Replayed", "StepGraphs", "record_steps"]
