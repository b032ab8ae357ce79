"""Platforms: the contract they fulfil, how they are found, and how a plan is made for one."""

from __future__ import annotations
