"""A model's tokenizer: the Rust library's, with what the model's files say around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tokenizers

from allmetal.errors import RequestError
from allmetal.text.chat import render
from allmetal.text.late import LateBackend
from allmetal.text.pieces import Pieces, Spell, pieces_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """What a tokenizer is made of, whatever file it was read from.

    `special_tokens`: role (bos_token, eos_token ..) -> text, as chat templates know them.
    `chat_templates`: name -> Jinja source; the one that is used unasked is "default".
    """

    backend: tokenizers.Tokenizer | LateBackend
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()
    chat_templates: Mapping[str, str] = field(default_factory=dict)


class Tokenizer:
    """Safe to use from several threads: nothing changes after it was made."""

    def __init__(self, parts: TokenizerParts) -> None:
        self.special_tokens = parts.special_tokens
        self.chat_templates = parts.chat_templates
        self.eos_token_ids = parts.eos_token_ids
        self._backend = parts.backend
        self.special_ids: frozenset[int]
        if isinstance(parts.backend, LateBackend):
            recipe, backend = parts.backend.recipe, parts.backend.for_text("")
            self._spell: Spell = recipe.spell
            self.special_ids = recipe.special_ids
            self._size = recipe.vocab_size
        else:
            backend = parts.backend
            self._spell = backend.id_to_token
            added = backend.get_added_tokens_decoder()
            self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
            self._size = backend.get_vocab_size(with_added_tokens=True)
        self.pieces: Pieces | None = pieces_of(backend, self._spell)
        bos = self.special_tokens.get("bos_token")
        self._bos_token_id = None if bos is None else backend.token_to_id(bos)

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The library's, with the whole vocabulary."""
        return self._backend.whole() if isinstance(self._backend, LateBackend) else self._backend

    @property
    def bos_token_id(self) -> int | None:
        return self._bos_token_id

    @property
    def vocab_size(self) -> int:
        """Added tokens included.  A model may have more rows than that."""
        return self._size

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Text that spells a special token becomes that token."""
        backend = self._backend
        try:
            if isinstance(backend, LateBackend):
                backend = backend.for_text(text)
            return backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:  # a str that is no Unicode text, or no str
            raise RequestError(f"this is no text that can be encoded: {text!r:.60}") from None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str:
        """The vocabulary's own spelling; empty for a number beyond it."""
        return self._spell(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text, as UTF-8 that may start or end within a character."""
        if self.pieces is not None:
            return self.pieces.bytes_of(token_id)
        return self.decode([token_id], skip_special_tokens=False).encode()

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt's text, special tokens spelled out: encode it without adding any.

        `chat_template` is a template's name or source; `kwargs` are handed to the template.
        Raises RequestError when the model has no template or the template refuses the messages.
        """
        source = self._template(chat_template, tools)
        return render(
            source,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            special_tokens=self.special_tokens,
            **kwargs,
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **template: Any) -> list[int]:
        """The token ids of a conversation; `template` as of `apply_chat_template`."""
        text = self.apply_chat_template(messages, **template)
        return self.encode(text, add_special_tokens=False)

    def _template(self, given: str | None, tools: object) -> str:
        if given is not None:
            return self.chat_templates.get(given, given)
        if tools and "tool_use" in self.chat_templates:
            return self.chat_templates["tool_use"]
        if self.chat_template is None:
            others = ", ".join(self.chat_templates)
            raise RequestError(
                "this model has no chat template"
                + (f" that is used unasked (it has {others})" if others else ""),
                hint="it may be a base model: send it a plain prompt to continue;"
                " or give a template with --chat-template FILE",
            )
        return self.chat_template
