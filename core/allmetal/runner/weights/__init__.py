"""Weights on their way from a checkpoint into a model."""

from __future__ import annotations

from allmetal.runner.weights.dummy import dummy_readers
from allmetal.runner.weights.readers import weight_format, weight_readers
from allmetal.runner.weights.stored import StoredReader
from allmetal_models.base import WeightReader

__all__ = ["StoredReader", "WeightReader", "dummy_readers", "weight_format", "weight_readers"]
