"""Libraries that stand in for CANN, so that the real torch_npu runs where there is no NPU.

torch_npu's own code does all that it does on a device: registration of operators with their
schemas and meta kernels, the caching allocator, streams, events, graphs, process groups.  What it
calls below that lies here: device memory is the host's, queues are empty as soon as they are
filled, and collectives meet in shared memory.  **No operator computes**: the `emulator` answers
them, by functions that say in plain torch what the vendor's documents say the operator does.

So this proves how the operators are called and what the host does.  It proves nothing of a
device's numbers or speed.
"""

from __future__ import annotations

from standin_cann.load import load

__all__ = ["load"]
