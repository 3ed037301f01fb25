"""What a plugin may do while loading, and what happens: one line about that plugin, and nothing stops another."""

import pytest

pytestmark = pytest.mark.slow  # whole processes, one after the other

HOOK = "from trinity_core import hookimpl\n@hookimpl\n"
ROWS = {
    "raises at import": ("raise RuntimeError('boom')", "broken", "import: RuntimeError: boom"),
    "calls sys.exit": ("import sys\nsys.exit(3)", "broken", "import: calls sys.exit(3)"),
    "imports what is missing": ("import no_such_library", "broken", "No module named 'no_such_library'"),
    "has a syntax error": ("def", "broken", "SyntaxError"),
    "forgets @hookimpl": (
        "def trinity_rewards(): return {}",
        "ok",
        "registers nothing: trinity_rewards lacks @hookimpl",
    ),
    "has no hook at all": ("x = 1", "ok", "registers nothing: it has no function marked @hookimpl"),
    "has a hook we do not know": (
        HOOK + "def trinity_schedules(): return {}",
        "broken",
        "unknown hook 'trinity_schedules'",
    ),
    "misspells a hook": (HOOK + "def trinity_reward(): return {}", "broken", "Did you mean 'trinity_rewards'?"),
    "takes an unknown argument": (HOOK + "def trinity_rewards(cfg): return {}", "broken", "unknown argument 'cfg'"),
    "returns a list": (HOOK + "def trinity_rewards(): return ['a']", "broken", "trinity_rewards returned a list"),
    "returns a class": (HOOK + "def trinity_rewards(): return {'a': dict}", "broken", 'expected "module:attr"'),
    "returns a bad name": (HOOK + "def trinity_rewards(): return {'a b': 'x:Y'}", "broken", "'a b' is no name"),
    "raises in a hook": (HOOK + "def trinity_rewards(): 1 / 0", "broken", "trinity_rewards: ZeroDivisionError"),
    "exits in a hook": (HOOK + "def trinity_rewards(): raise SystemExit", "broken", "calls sys.exit(None)"),
    "names a conf that is not there": (
        HOOK + "def trinity_conf(): return 'pkg://nowhere.conf'",
        "broken",
        "no package 'nowhere.conf'",
    ),
    "names a conf that is no package": (
        HOOK + "def trinity_conf(): return '/etc'",
        "broken",
        'expected "pkg://package.conf"',
    ),
    "asks for components while loading": (
        "from trinity_core.plugins import catalog\ncatalog('reward')",
        "broken",
        "asked for components while loading: do it in the component",
    ),
    "asks and swallows the refusal": (
        "from trinity_core.plugins import catalog\ntry: catalog('reward')\nexcept Exception: pass\n"
        + HOOK
        + "def trinity_rewards(): return {'mine': 'x:Y'}",
        "broken",
        "asked for components while loading",
    ),
    "prints at import": (
        "print('hello from a plugin')\n" + HOOK + "def trinity_rewards(): return {'mine': 'x:Y'}",
        "ok",
        "prints while loading: 'hello from a plugin'",
    ),
    "is slow": (
        "import time; time.sleep(0.3)\n" + HOOK + "def trinity_rewards(): return {'mine': 'x:Y'}",
        "ok",
        "slow to load: 0.",
    ),
}


@pytest.mark.parametrize(("source", "status", "problem"), ROWS.values(), ids=ROWS)
def test_a_plugin_that_misbehaves_is_one_line_and_others_work(with_good, source, status, problem):
    with_good.add("bad", source)
    found = with_good.plugins()
    assert found["bad"]["status"] == status
    assert any(problem in line for line in found["bad"]["problems"]), found["bad"]["problems"]
    assert all("\n" not in line for line in found["bad"]["problems"])
    assert found["good"]["components"] == {"reward": {"good": "good_rewards:Good"}}
    assert found["builtins"]["status"] == "ok"
    if status == "broken":
        assert found["bad"]["components"] == {}
        shown = with_good.trinity("plugins")
        assert shown.returncode == 0
        assert "BROKEN" in shown.stdout and problem.split("\n")[0] in shown.stdout


def test_a_pin_on_another_version_of_ours_is_checked(with_good):
    with_good.add("old", "raise SystemError('must not be imported')", requires="trinity-core>=7,<8")
    found = with_good.plugins()["old"]
    assert found["status"] == "broken"
    assert found["problems"] == ["needs trinity-core<8,>=7, this is 0.1.0. Upgrade one of them"]


def test_an_optional_hook_of_a_newer_core_is_fine(site):
    site.add(
        "new", "from trinity_core import hookimpl\n@hookimpl(optionalhook=True)\ndef trinity_schedules(): return {}"
    )
    assert site.plugins()["new"]["status"] == "ok"


def test_plugins_come_in_order_of_name(with_good):
    with_good.add("zebra", "x = 1")
    with_good.add("ant", "x = 1")
    found = list(with_good.plugins())  # whatever else is installed here is among them
    assert found[0] == "builtins"
    assert found[1:] == sorted(found[1:]) and {"ant", "good", "zebra"} <= set(found)


def test_what_a_plugin_prints_goes_to_stderr(with_good):
    with_good.add("loud", "print('hello')")
    done = with_good.trinity("run", "recipe=fake", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    assert "hello" not in done.stdout and done.stdout.startswith("mode: both")
    assert "hello" in done.stderr


def test_a_disabled_plugin_is_not_loaded(with_good):
    with_good.add("bad", "raise RuntimeError('boom')")
    for name in ("bad", "trinity-plugin-bad"):
        found = with_good.plugins(TRINITY_DISABLE_PLUGINS=name)["bad"]
        assert (found["status"], found["problems"]) == ("disabled", [f"disabled by TRINITY_DISABLE_PLUGINS={name}"])


def test_a_run_says_once_in_one_line_what_is_broken_and_children_are_silent(with_good):
    with_good.add("bad", "raise RuntimeError('boom')")
    code = (
        "import subprocess, sys; from trinity_core.plugins import warn_broken; warn_broken(); warn_broken()\n"
        "subprocess.run([sys.executable, '-c', 'from trinity_core.plugins import warn_broken; warn_broken()'])"
    )
    lines = with_good.python(code).stderr.splitlines()
    assert lines == [
        "trinity: plugins not loaded: trinity-plugin-bad: import: RuntimeError: boom (see: trinity plugins)"
    ]


def test_a_broken_plugin_stops_only_the_run_that_names_its_component(with_good):
    with_good.add("math-rewards", "raise RuntimeError('boom')")
    fine = with_good.trinity("run", "recipe=fake", "reward=[good]", "--cfg", "job")
    assert fine.returncode == 0, fine.stderr
    broken = with_good.trinity("run", "recipe=fake", "reward=[math]", "--cfg", "job")
    assert broken.returncode == 2
    assert "no reward named 'math'" in broken.stderr
    assert "trinity-plugin-math-rewards, which is installed but broken: import: RuntimeError: boom" in broken.stderr
    assert "Traceback" not in broken.stderr


def test_two_owners_of_a_name_stop_only_a_run_that_uses_it(with_good):
    with_good.add(
        "other", "from trinity_core import hookimpl\n@hookimpl\ndef trinity_rewards(): return {'good': 'x:Y'}"
    )
    assert with_good.trinity("run", "recipe=fake", "--cfg", "job").returncode == 0
    done = with_good.trinity("run", "recipe=fake", "reward=[good]", "--cfg", "job")
    assert done.returncode == 2
    assert "'good' (trinity-plugin-good)" in done.stderr and "'other' (trinity-plugin-other)" in done.stderr
    assert "TRINITY_DISABLE_PLUGINS=other" in done.stderr
    again = with_good.trinity("run", "recipe=fake", "reward=[good]", "--cfg", "job", TRINITY_DISABLE_PLUGINS="other")
    assert again.returncode == 0, again.stderr
    assert "reward 'good' is also provided by" in with_good.trinity("plugins").stdout


def test_two_distributions_with_one_plugin_name_are_named(with_good):
    with_good.add("good2", "x = 1")
    entry = with_good.folder / "trinity_plugin_good2-1.0.dist-info" / "entry_points.txt"
    entry.write_text("[trinity]\ngood = plugin_good2\n")
    problems = [line for info in _all(with_good) for line in info["problems"]]
    assert any("plugin name 'good' is taken by trinity-plugin-good" in line for line in problems)


def _all(site):
    import json

    done = site.python(
        "import json, dataclasses; from trinity_core.plugins import plugins\n"
        "print(json.dumps([dataclasses.asdict(i) for i in plugins()]))"
    )
    return json.loads(done.stdout)


def test_a_registered_component_needs_no_option_file(with_good):
    done = with_good.trinity("run", "recipe=fake", "reward=[good]", "--cfg", "job")
    assert "rewards:\n  good:\n    name: good\n" in done.stdout, done.stderr


def test_a_plugin_brings_options_and_recipes(with_good):
    with_good.write("shipped/__init__.py", "")
    with_good.write("shipped/conf/__init__.py", "")
    with_good.write("shipped/conf/recipe/theirs.yaml", "# @package _global_\nsteps: 77\n")
    with_good.add(
        "ships", "from trinity_core import hookimpl\n@hookimpl\ndef trinity_conf(): return 'pkg://shipped.conf'"
    )
    done = with_good.trinity("run", "recipe=[fake,theirs]", "--cfg", "job")
    assert "steps: 77" in done.stdout, done.stderr


def test_a_plugin_can_bring_a_command(with_good):
    with_good.add(
        "tool",
        "from trinity_core import hookimpl\n@hookimpl\ndef trinity_commands(): return {'greet': 'greeting:Greet'}",
    )
    with_good.write(
        "greeting.py",
        "from dataclasses import dataclass\nfrom trinity_core.protocols import Command\n@dataclass(frozen=True)\n"
        "class Greet(Command):\n    def __call__(self, argv):\n        print('hello', *argv)\n        return 5\n",
    )
    done = with_good.trinity("greet", "you")
    assert (done.returncode, done.stdout) == (5, "hello you\n")
