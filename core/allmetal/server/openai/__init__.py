"""The OpenAI API: models, completions, chat completions.

Source: https://platform.openai.com/docs/api-reference (request and response shapes).
"""

from __future__ import annotations
