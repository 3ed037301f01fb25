"""Prints what the comparisons found, for docs/peers.md."""

from peer_batches import FIGURES


def pytest_terminal_summary(terminalreporter):
    for what, found in sorted(FIGURES.items()):
        terminalreporter.write_line(f"{found:9.2e}  {what}")
