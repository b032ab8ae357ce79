"""Chat templates: Jinja in a sandbox, with the helpers that Hugging Face's templates rely on.

Source: https://huggingface.co/docs/transformers/chat_templating_writing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from allmetal.errors import RequestError

if TYPE_CHECKING:
    import jinja2


def render(
    source: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    special_tokens: Mapping[str, str],
    **kwargs: Any,
) -> str:
    """The messages as one prompt.  Raises RequestError with the template's own complaint."""
    import jinja2

    try:
        return compiled(source).render(
            **{
                **special_tokens,
                "documents": None,
                **kwargs,
                "messages": [_text_only(message) for message in messages],
                "tools": list(tools) if tools else None,
                "add_generation_prompt": add_generation_prompt,
            }
        )
    except jinja2.TemplateError as e:
        raise RequestError(f"the model's chat template refuses these messages: {e}") from e
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        raise RequestError(
            f"the model's chat template fails on these messages: {type(e).__name__}: {e}",
            hint="each message needs a role and a content",
        ) from e


def _text_only(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A content given as a list of text parts is joined: most templates know strings only."""
    content = message.get("content")
    if not isinstance(content, list) or not all(_is_text(part) for part in content):
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}


def _is_text(part: object) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    )


@lru_cache(maxsize=32)
def compiled(source: str) -> jinja2.Template:
    """Raises RequestError where the template itself is wrong."""
    import jinja2

    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as e:
        raise RequestError(
            f"the chat template is not valid Jinja: line {e.lineno}: {e.message}"
        ) from e


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import CallBlock, Node
    from jinja2.parser import Parser
    from jinja2.runtime import Macro
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks what the assistant said, for training; here it is transparent."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_render")
            return CallBlock(call, [], [], body).set_lineno(line)

        def _render(self, caller: Macro) -> str:
            return caller()

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML, which models have not seen."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
