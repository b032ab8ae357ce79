"""What the platforms share that torch drives and Triton compiles for: the device, its graphs, its
collectives.  Which module of torch it is, and how it is told apart, is each platform's own."""

from __future__ import annotations
