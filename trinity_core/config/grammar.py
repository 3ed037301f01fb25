"""Words as typed to parsed overrides. What cannot be read is named word by word, with what to write instead."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from trinity_core.config.schema import RunConfig
from trinity_core.errors import ConfigError
from trinity_core.kinds import CONFIG_KINDS

FORM = "Words are group=option, key=value, +key=value or ~key"
QUOTE = "Quote words with braces, brackets or spaces: 'model.lora={rank: 16}'"
KEYS = frozenset({"recipe", "sweep", "models"}) | {field.name for field in dataclasses.fields(RunConfig)}


def parse(words: Sequence[str]) -> list[Override]:
    """Every word as Hydra's override; raises :class:`ConfigError` for the first that is none."""
    parser = OverridesParser.create()
    parsed: list[Override] = []
    for index, word in enumerate(words):
        if word.startswith("-"):
            raise ConfigError(dashed(word, words[index + 1 : index + 2]))
        try:
            parsed += parser.parse_overrides([word])
        except HydraException as error:
            raise ConfigError(_unreadable(word, words[index + 1 : index + 2], error)) from None
    return parsed


def refuse_several(parsed: Sequence[Override]) -> None:
    """Refuse ``seed=0,1`` where one run is meant."""
    for override in parsed:
        if override.is_sweep_override():
            key, value = str(override.key_or_group), str(override.input_line).partition("=")[2]
            one = f"""; as one text: '{key}="{value}"'; as a list: '{key}=[{value}]'""" if "," in value else ""
            raise ConfigError(f"{override.input_line}: several values need -m (one run each){one}")


def dashed(word: str, following: Sequence[str] = ()) -> str:
    """The refusal of ``--out=foo``."""
    bare, equals, value = word.lstrip("-").partition("=")
    known = {*KEYS, *CONFIG_KINDS, *(kind.node for kind in CONFIG_KINDS.values())}
    if bare.partition(".")[0].partition("@")[0] in known:
        given = value if equals else next((w for w in following if "=" not in w and w[:1] not in "-+~"), "VALUE")
        return f"{word}: words have no dashes: {bare}={given}"
    return f"{word}: no such option. Option files go into conf/ of your project. {FORM}; see trinity run --help"


def _unreadable(word: str, following: Sequence[str], error: Exception) -> str:
    """Why ``word`` cannot be read. A shell that split one word in two shows as two odd ones."""
    if re.fullmatch(r"[\w.@/]+", word):
        value = next((w for w in following if "=" not in w and w[:1] not in "-+~"), "VALUE")
        return f"{word}: a word has the form key=value: write {word}={value}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("See http")]
    said = next((line for line in lines if not line.startswith("Error parsing override")), "")
    said = re.sub(r"^\w*Exception while evaluating .*?: ", "", said)
    hint = QUOTE
    if word.startswith("over"):
        hint = """Each word of a stage has quotes of its own: 'over={NAME: ["steps=50"]}'"""
    elif "Unknown function" in said:
        key, _, value = word.partition("=")
        hint = f"""A text with parentheses has quotes of its own: '{key}="{value}"'"""
    elif not any(character in word for character in "{}[]() :\"'"):
        hint = FORM
    return f"cannot read the word {word!r}: {said}. {hint}"
