"""The work of one rank with torch: state, inputs, forward pass, sampling."""

from __future__ import annotations
