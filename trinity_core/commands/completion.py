"""Shell completion: ``trinity --completion bash`` prints a script, which asks ``trinity _complete WORDS`` as you type."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trinity_core.errors import ConfigError

BASH = """_trinity() {
    local IFS=$'\\n'
    COMPREPLY=($(compgen -W "$(trinity _complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"))
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=/}
complete -o default -F _trinity trinity
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n" + BASH
SCRIPTS = {"bash": BASH, "zsh": ZSH}


def main(argv: Sequence[str]) -> int:
    """``["--completion", SHELL]`` prints a script; ``["_complete", *words]`` the candidates for the last word."""
    if argv[0] == "--completion":
        shell = argv[1] if len(argv) > 1 else "nothing"
        if shell not in SCRIPTS:
            raise ConfigError(f"--completion {shell}: shells: {', '.join(SCRIPTS)}")
        print(SCRIPTS[shell], end="")
        return 0
    print("\n".join(candidates(argv[1:])))
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """What the last of ``words`` may become. Reads folders and the catalog; composes the words before it only where it asks for
    values of a part (``backend.``)."""
    from trinity_core.cli import COMMANDS

    if len(words) <= 1:
        return sorted(COMMANDS)
    command, typed = words[0], words[1:]
    if command in ("run", "plan"):
        found = _values(typed) or _run_words(typed[-1])
        return [{"--cfg": "--dry"}.get(word, word) for word in found] if command == "plan" else found
    from trinity_core.kinds import KINDS

    if command == "plugins":
        if len(typed) == 1:
            return list(KINDS)
        from trinity_core.plugins import catalog

        return list(catalog(typed[0])) if typed[0] in KINDS else []
    if command == "new":
        from trinity_core.commands.new import KINDS as NEW

        return ["--kind", *NEW]
    return []


def _run_words(word: str) -> list[str]:
    """``lo`` -> ``loss=``; ``loss=`` -> ``loss=ppo`` …; root nodes and their fields; options of the command."""
    from trinity_core.kinds import CONFIG_KINDS

    groups = ["model", "critic", "algorithm", "recipe", "sweep", *CONFIG_KINDS]
    group, equals, _ = word.partition("=")
    bare = group.lstrip("+").partition("@")[0]
    if equals:
        return [f"{group}={option}" for option in _options(bare)] if bare in groups else []
    return [f"{name}=" for name in groups] + [f"{path}=" for path in _paths()] + ["-m", "--cfg", "--help"]


def _values(typed: Sequence[str]) -> list[str]:
    """``backend.`` -> ``backend.micro_tokens=`` …: values of the parts that the words before it choose, by themselves or by recipe."""
    from trinity_core.kinds import CONFIG_KINDS

    word = typed[-1].lstrip("+~")
    sign, root = typed[-1][: -len(word)] if word else "", word.partition(".")[0]
    under = "eval.tasksets" if word.startswith("eval.tasksets.") else root
    if "." not in word or "=" in word or root not in ("eval", "models", *(kind.node for kind in CONFIG_KINDS.values())):
        return []
    from omegaconf import OmegaConf

    from trinity_core.config.compose import compose
    from trinity_core.errors import TrinityError

    before = [one.strip("'\"") for one in typed[:-1] if not one.startswith("-")]
    for words in (before, []):
        try:
            tree = OmegaConf.to_container(OmegaConf.select(compose(words), under) or OmegaConf.create())
        except TrinityError:
            continue  # words that cannot be composed yet: the values of the default are better than none
        return [f"{sign}{path}=" for path in _of_parts(tree, under)]
    return []


def _of_parts(node: Any, path: str) -> Iterator[str]:
    """Paths of the values of every part at ``path`` or below."""
    from trinity_core.config.compose import group_of
    from trinity_core.describe import field_docs
    from trinity_core.errors import TrinityError
    from trinity_core.kinds import CONFIG_KINDS
    from trinity_core.plugins import resolve

    if not isinstance(node, Mapping):
        return
    if not isinstance(name := node.get("name"), str):
        for key, inner in node.items():
            yield from _of_parts(inner, f"{path}.{key}")
        return
    group, keys = group_of(path)[0], [str(key) for key in node if key != "name"]
    if ":" in name or not keys:  # no option file wrote them down
        with contextlib.suppress(TrinityError):
            keys += field_docs(resolve(group, name))
    yield from (f"{path}.{key}" for key in dict.fromkeys([*keys, *CONFIG_KINDS[group].slot_keys]))


def _options(group: str) -> list[str]:
    """Option files and components of a group, without Hydra."""
    import trinity_core
    from trinity_core.config.project import find_project
    from trinity_core.kinds import CONFIG_KINDS
    from trinity_core.plugins import catalog

    bases = [Path(trinity_core.__file__).parent / "conf" / group]
    if project := find_project():
        bases.append(project / "conf" / group)
    found = set(catalog(group)) if group in CONFIG_KINDS else set()
    for base in bases:
        found |= {file.relative_to(base).with_suffix("").as_posix() for file in base.rglob("*.yaml")}
    return sorted(found)


def _paths() -> list[str]:
    """Dotted paths of the root schema: ``seed``, ``optim.lr`` …"""
    import dataclasses
    import typing

    from trinity_core.config.schema import RunConfig

    hints = typing.get_type_hints(RunConfig)
    found = []
    for field in dataclasses.fields(RunConfig):
        if field.name == "parts":
            continue
        inner = [
            part for part in (hints[field.name], *typing.get_args(hints[field.name])) if dataclasses.is_dataclass(part)
        ]
        found += [f"{field.name}.{sub.name}" for sub in dataclasses.fields(inner[0])] if inner else [field.name]
    return found
