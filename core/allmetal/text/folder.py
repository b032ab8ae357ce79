"""The tokenizer of a Hugging Face folder: tokenizer.json and the small files around it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from allmetal.checkpoint.folder import read_json
from allmetal.errors import CheckpointError
from allmetal.text.spm_model import spm_file_backend
from allmetal.text.tokenizer import TokenizerParts

ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")

_SPM_SETTINGS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "add_bos_token": True,
}
"""What goes without saying where tokenizer.model is all there is."""


def folder_parts(folder: Path) -> TokenizerParts:
    """Raises CheckpointError when there is no tokenizer, or its files contradict each other."""
    settings = _optional(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").is_file():
        backend = _from_json(folder / "tokenizer.json")
    elif (folder / "tokenizer.model").is_file():
        backend = spm_file_backend(folder / "tokenizer.model")
        settings = {**_SPM_SETTINGS, **settings}
    else:
        raise CheckpointError(
            f"{folder} has no tokenizer.json or tokenizer.model",
            hint="name a folder or hub model that has one with --tokenizer",
        )
    special = _special_tokens(settings, _optional(folder / "special_tokens_map.json"))
    _add_missing_tokens(backend, settings)
    if not (folder / "tokenizer.json").is_file():  # which alone says what it puts around a text
        bos, eos = special.get("bos_token"), special.get("eos_token")
        set_template(
            backend,
            bos if settings["add_bos_token"] else None,
            eos if settings.get("add_eos_token") else None,
        )
    eos_id = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return TokenizerParts(
        backend=backend,
        special_tokens=special,
        eos_token_ids=() if eos_id is None else (eos_id,),
        chat_templates=_chat_templates(folder, settings),
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _from_json(path: Path) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as e:  # the library raises nothing more special
        raise CheckpointError(
            f"{path} cannot be read: {e}",
            hint="fetch it again; if it is newer than the installed tokenizers library:"
            " pip install -U tokenizers",
        ) from e
    backend.no_truncation()
    backend.no_padding()
    return backend


def _text(token: object) -> str | None:
    """A special token is given as text, or as an object with its content."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _special_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    """The first source that knows a role counts."""
    found: dict[str, str] = {}
    for source in sources:
        for role in ROLES:
            text = _text(source.get(role))
            if text is not None:
                found.setdefault(role, text)
    return found


def _add_missing_tokens(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> None:
    """Tokens that only tokenizer_config.json knows; each must get the id stated there."""
    known = backend.get_added_tokens_decoder()
    stated = {int(id_): token for id_, token in settings.get("added_tokens_decoder", {}).items()}
    for id_, token in sorted(stated.items()):
        if id_ in known:
            continue
        added = tokenizers.AddedToken(
            token["content"],
            single_word=token.get("single_word", False),
            lstrip=token.get("lstrip", False),
            rstrip=token.get("rstrip", False),
            normalized=token.get("normalized", True),
            special=token.get("special", False),
        )
        backend.add_tokens([added])
        got = backend.token_to_id(token["content"])
        if got != id_:
            raise CheckpointError(
                f"tokenizer_config.json gives the token {token['content']!r} the id {id_},"
                f" tokenizer.json makes it {got}",
                hint="the two files belong to different versions: fetch them again",
            )


def set_template(backend: tokenizers.Tokenizer, bos: str | None, eos: str | None) -> None:
    """Encoding adds these tokens around a text.  A token that does not exist is left out."""
    ends = {text: backend.token_to_id(text) for text in (bos, eos) if text is not None}
    around = [text for text in (bos, "$A", eos) if text == "$A" or ends.get(text or "") is not None]
    backend.post_processor = TemplateProcessing(
        single=[f"{text}:0" for text in around if text is not None],
        special_tokens=[(text, id_) for text, id_ in ends.items() if id_ is not None],
    )


def _chat_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Files of their own come before tokenizer_config.json's entry, a text or a list of named."""
    found: dict[str, str] = {}
    for name in ("tokenizer_config.json", "chat_template.json"):
        source = settings if name == "tokenizer_config.json" else _optional(folder / name)
        match source.get("chat_template"):
            case str(text):
                found["default"] = text
            case list(entries):
                found |= {entry["name"]: entry["template"] for entry in entries}
    file = folder / "chat_template.jinja"
    if file.is_file():
        found["default"] = file.read_text(encoding="utf-8")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[file.stem] = file.read_text(encoding="utf-8")
    return found
