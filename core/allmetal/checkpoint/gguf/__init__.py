"""GGUF files: llama.cpp's single-file format, read without its library.

`reader` parses the file, `keys` turns metadata into a config, `names` turns tensor names into
Hugging Face's, `checkpoint` puts them together.
"""

from __future__ import annotations
