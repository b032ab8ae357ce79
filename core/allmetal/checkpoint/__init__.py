"""Checkpoints: where a model's files are, what is in them, and their bytes.  No torch here."""

from __future__ import annotations

from allmetal.checkpoint.contract import Checkpoint, CheckpointFormat, TensorInfo
from allmetal.checkpoint.open import open_checkpoint

__all__ = ["Checkpoint", "CheckpointFormat", "TensorInfo", "open_checkpoint"]
