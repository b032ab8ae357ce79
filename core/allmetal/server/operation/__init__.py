"""What is asked by those who run a server: is it well, how busy is it, what is it."""

from __future__ import annotations
