"""The subcommands of ``trinity``: one module each, with ``main(argv) -> exit code``."""
