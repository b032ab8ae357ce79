"""Model definitions, one file per `model_type`."""

from __future__ import annotations
