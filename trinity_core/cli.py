"""The ``trinity`` command. Parses one word, then imports only what that word needs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("trinity_core.commands.run", "compose a run from words and start it (-m: one run per combination)"),
    "plan": (
        "trinity_core.commands.plan",
        "what a run will do, how long it takes and how much memory, before it starts",
    ),
    "plugins": ("trinity_core.commands.plugins", "what is installed: plugins, components, their options and problems"),
    "new": ("trinity_core.commands.new", "start a plugin package that passes the conformance kit"),
    "doctor": ("trinity_core.commands.doctor", "look for what is wrong with this installation"),
    "audit": ("trinity_core.commands.audit", "replay a run's ledger and check that nothing was lost or used twice"),
    "digest": ("trinity_core.commands.digest", "one hash of everything a run computed"),
    "judge": ("trinity_core.commands.judge", "show a run's questions to people and write down what they prefer"),
    "export": ("trinity_core.commands.export", "write a run's policy as a plain model folder"),
    "version": ("trinity_core.commands.version", "print the version"),
}
COMPLETION = "trinity_core.commands.completion"
"""Word -> module with a ``main(argv) -> exit code``, and what it does."""

FOOTER = """
start here:
  trinity run recipe=quickstart            a small model learns on two CPU cores
  trinity run recipe=fake                  the same loop over a table, in seconds
  trinity run --help                       groups, options and values
  eval "$(trinity --completion bash)"      completion in this shell
"""


def usage() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {word:{width}}{says}" for word, (_, says) in COMMANDS.items()]
    return "\n".join(["usage: trinity COMMAND [words]", "", "commands:", *lines, FOOTER])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An error on purpose is one message; TRINITY_DEBUG=1 shows where. ``argv``: for
    a caller that goes on afterwards; without it, this is the process's whole work."""
    words = list(sys.argv[1:] if argv is None else argv)
    word, rest = (words[0], words[1:]) if words else ("--help", [])
    if word in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0
    if word == "--version":
        word = "version"
    from trinity_core.errors import TrinityError

    try:
        if word in ("--completion", "_complete"):
            code: int = importlib.import_module(COMPLETION).main([word, *rest])
            return code
        if word in COMMANDS:
            code = importlib.import_module(COMMANDS[word][0]).main(rest)
            return code
        return _plugin_command(word, rest)
    except TrinityError as error:
        if os.environ.get("TRINITY_DEBUG") == "1":
            raise
        if error.exit_code == 130 and argv is None:
            _quiet()
        print(f"trinity {word}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        if argv is None:
            _quiet()
        print(f"trinity {word}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `trinity plugins | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if os.environ.get("TRINITY_DEBUG") == "1" or error.filename is None:
            raise
        print(
            f"trinity {word}: {error.filename}: {error.strerror}. Check that it exists and that you may read and write it; "
            "TRINITY_DEBUG=1 shows where",
            file=sys.stderr,
        )
        return 2


def _quiet() -> None:
    """Interrupted, and what is left is to go: one more Ctrl-C ends the process at once, with no traceback of what it was at."""
    import signal

    signal.signal(signal.SIGINT, lambda *_: os._exit(130))


def _plugin_command(word: str, argv: Sequence[str]) -> int:
    """A subcommand that a plugin registers."""
    import shlex

    from trinity_core.errors import ConfigError
    from trinity_core.plugins import catalog, did_you_mean, resolve

    others = catalog("command")
    if word not in others:
        if "=" in word:
            raise ConfigError(f"no such command. Words come after one: trinity run {shlex.join([word, *argv])}")
        if word in ("both", "train", "explore", "bench"):
            raise ConfigError(
                f"no such command. It is a mode of a run: trinity run {shlex.join([f'mode={word}', *argv])}"
            )
        known = [*COMMANDS, *others]
        raise ConfigError(f"no such command.{did_you_mean(word, known)} Commands: {', '.join(known)}")
    code: int = resolve("command", word)()(argv)
    return code


if __name__ == "__main__":
    sys.exit(main())
