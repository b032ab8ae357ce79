"""Code for the device that only NVIDIA's GPUs take."""

from __future__ import annotations
