"""Run every benchmark, one process after the other, and write docs/performance.md.

``make bench`` runs them all. ``python benchmarks/report.py --only sampling gpu`` runs some again and keeps what
``benchmarks/results.json`` holds of the others; ``--only`` without a name runs nothing and writes the page anew. A benchmark that
is missing or fails stands on the page with the reason. Exits with 1 if one of those that ran missed a limit or failed.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import common

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results.json", common.ROOT / "docs/performance.md"
NAMES = (
    "floors",
    "parity",
    "training",
    "sampling",
    "grpo_vs_trl",
    "overhead",
    "buffer",
    "plan",
    "memory",
    "startup",
    "gpu",
)
"""In the order in which they run and stand on the page."""
NOT_RUN = {"failed": "it was not run yet"}
UNITS = {
    "_per_s": "/s",
    "_ms": " ms",
    "_us": " µs",
    "_mb": " MiB",
    "_gb": " GB",
    "_s": " s",
    "_share": "",
    "_ratio": " ×",
    "_x": " ×",
}
"""Last words of a figure's name and how they are written behind its value."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--trl-python", type=Path, help="passed on to grpo_vs_trl.py")
    parser.add_argument("--vllm-python", type=Path, help="passed on to sampling.py")
    options = parser.parse_args()
    more = {
        "grpo_vs_trl": ["--trl-python", str(options.trl_python.absolute())] if options.trl_python else [],
        "sampling": ["--vllm-python", str(options.vllm_python.absolute())] if options.vllm_python else [],
    }
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    bad = []
    for name in NAMES if options.only is None else [name for name in NAMES if name in options.only]:
        print(f"=== {name}", file=sys.stderr, flush=True)
        results[name] = measure(name, more.get(name, []))
        if not holds(results[name]):
            bad.append(name)
        # after each one: what is measured is kept, whatever becomes of the next
        RESULTS.write_text(json.dumps({key: results[key] for key in NAMES if key in results}, indent=1) + "\n")
        PAGE.write_text(page(results))
    PAGE.write_text(page(results))
    print(f"{PAGE.relative_to(common.ROOT)} is written", file=sys.stderr)
    if bad:
        print(f"a limit was missed, or nothing was measured: {', '.join(bad)}", file=sys.stderr)
    return int(bool(bad))


def measure(name: str, words: list[str]) -> dict:
    """The JSON line of one benchmark, or why there is none."""
    now = {"benchmark": name, "commit": common.commit(), "date": datetime.date.today().isoformat()}
    script = HERE / f"{name}.py"
    if not script.exists():
        return {**now, "failed": "there is no such script"}
    process = subprocess.Popen(
        [sys.executable, script, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=common.ROOT
    )
    lines = []
    for line in process.stdout or ():
        lines.append(line.rstrip())
        if not line.startswith('{"'):
            print(line, end="", file=sys.stderr, flush=True)
    status = process.wait()
    found = next((line for line in reversed(lines) if line.startswith('{"benchmark"')), None)
    if found is not None:
        return json.loads(found)
    said = [line for line in lines if line.strip()][-3:]
    return {**now, "failed": public(f"exit status {status}: {' / '.join(said) or 'it said nothing'}")}


def holds(result: dict) -> bool:
    """Whether a benchmark ran and every limit of it holds."""
    return "failed" not in result and all(limit["holds"] for limit in result["limits"].values())


def public(text: str) -> str:
    """Without the paths of this machine."""
    return text.replace(str(common.ROOT) + "/", "").replace(str(Path.home()), "~")


# --- the page ----------------------------------------------------------------------------------------------------------


def page(results: dict[str, dict]) -> str:
    """docs/performance.md: where and what was measured, one table, then what each benchmark means."""
    done = {name: results.get(name, NOT_RUN) for name in NAMES}
    measured = [result for result in done.values() if "failed" not in result]
    lines = [
        "# Performance",
        "",
        "<!-- Written by `make bench` from what was measured. Run it again, do not change this file. -->",
        "",
        *where(measured),
        "",
        "| benchmark | figure | value | limit | holds |",
        "|---|---|---|---|---|",
    ]
    for name, result in done.items():
        lines += rows(name, result)
    lines += [
        "",
        "The last word of a figure is its unit: `_s` seconds, `_ms` milliseconds, `_mb` MiB, `_per_s` each second; `_ratio` is a quotient of two figures of "
        "the same run, `_share` a part of 1; a share or quotient is the median over steps, not that of the medians beside it. *Cells* are tokens that are computed: "
        "what sequences share counts once. What is *not measured* had no device or no environment to run in.",
    ]
    here = told_machine(newest(measured)["machine"]) if measured else ""
    for name, result in done.items():
        lines += ["", f"## {name}", "", *section(name, result, here)]
    return "\n".join(lines) + "\n"


def where(measured: list[dict]) -> list[str]:
    """Machine, versions, commit and date; those that are not the same for all stand in the sections, too."""
    if not measured:
        return ["Nothing was measured yet: `make bench`."]
    versions: dict[str, set[str]] = {}
    for result in measured:
        for package, release in result["versions"].items():
            versions.setdefault(package, set()).add(release)
    told = [f"{package} {' and '.join(sorted(found))}" for package, found in versions.items()]
    commits = [f"`{commit}`" for commit in dict.fromkeys(result["commit"] for result in measured)]
    dates = sorted({result["date"] for result in measured})
    others = dict.fromkeys(told_machine(result["machine"]) for result in measured)
    here = told_machine(newest(measured)["machine"])
    more = " A section says where it was measured on another machine." if len(others) > 1 else ""
    return [
        f"Measured by `make bench`, which takes about an hour on an idle machine; {shown_dates(dates)}. Times are medians of at least five unless a line says otherwise.",
        "",
        "| | |",
        "|---|---|",
        f"| machine | {here}.{more} |",
        f"| versions | {', '.join(told)} |",
        f"| commit | {', '.join(commits)} |",
    ]


def newest(measured: list[dict]) -> dict:
    return max(measured, key=lambda result: result["date"])


def told_machine(machine: dict) -> str:
    flags = ", ".join(machine["flags"]) or "none of avx2, avx512, amx"
    return f"{machine['cores']} cores of {machine['cpu']} ({flags}), {machine['memory_gb']} GB, {machine['system'].split()[0]}"


def shown_dates(dates: list[str]) -> str:
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def rows(name: str, result: dict) -> list[str]:
    """Lines of the table."""
    if "failed" in result:
        return [f"| {name} | – | not measured: {cell(result['failed'])} | | {'' if result is NOT_RUN else '**no**'} |"]
    if all(value is None for value in result["figures"].values()):
        return [f"| {name} | – | {cell('; '.join(result['notes']))} | | |"]
    lines = []
    for figure, value in result["figures"].items():
        limit = result["limits"].get(figure)
        verdict = "" if limit is None else "yes" if limit["holds"] else "**no**"
        lines.append(
            f"| {name} | `{figure}` | {written(figure, value)} | {limit['limit'] if limit else ''} | {verdict} |"
        )
    return lines


def section(name: str, result: dict, here: str) -> list[str]:
    """What a benchmark is, what it said, and the command; the machine where it is not the one ``here``."""
    script = HERE / f"{name}.py"
    text = ast.get_docstring(ast.parse(script.read_text())) if script.exists() else None
    lines = [re.sub(r"``([^`]*)``", r"`\1`", text)] if text else ["This script is missing."]
    if "failed" in result:
        return [*lines, "", f"Not measured: {cell(result['failed'])}."]
    for note in result["notes"]:
        lines += ["", f"{note[0].upper()}{note[1:]}{'' if note.endswith('.') else '.'}"]
    if (machine := told_machine(result["machine"])) != here:
        lines += ["", f"Measured on another machine: {machine}."]
    busy = result.get("busy_cores")
    disturbed = (
        f" Other processes kept {busy} cores busy when it began." if busy is not None and busy > common.BUSY else ""
    )
    return [*lines, "", f"`{result['command']}` at `{result['commit']}`, {result['date']}.{disturbed}"]


def written(figure: str, value: object) -> str:
    """A value with its unit."""
    if value is None:
        return "not measured"
    unit = next((unit for end, unit in UNITS.items() if figure.endswith(end)), "")
    if isinstance(value, float) and abs(value) >= 1000:
        return f"{value:,.0f}{unit}"
    return f"{value:g}{unit}" if isinstance(value, float) else f"{cell(str(value))}{unit}"


def cell(text: str) -> str:
    """Text for one cell of a table."""
    return textwrap.shorten(text.replace("|", "/"), 300)


if __name__ == "__main__":
    sys.exit(main())
