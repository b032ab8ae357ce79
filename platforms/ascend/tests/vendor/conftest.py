"""Tests that need the real torch_npu; `make test-vendors` runs them in an environment that has it.

Without it nothing here is collected.  With it the stand-ins are loaded before anything else, since
transformers imports torch_npu wherever it is installed.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).parent))  # the stand-in libraries, for processes too

if find_spec("torch_npu") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import standin_cann

    standin_cann.load()
