"""Which distribution has a component that is not installed: what ``pip install …`` should say."""

from __future__ import annotations

HOMES: dict[str, dict[str, tuple[str, ...]]] = {
    "trinity-plugin-math-rewards": {
        "reward": ("math", "math_boxed", "accuracy", "math_format", "countdown"),
        "taskset": ("gsm8k", "countdown"),
    },
    "trinity-plugin-sql": {
        "reward": ("sql", "spider"),
        "taskset": ("sql", "spider"),
        "environment": ("sql",),
        "workflow": ("sql",),
    },
    "trinity-plugin-alfworld": {"environment": ("alfworld",), "taskset": ("alfworld",)},
    "trinity-plugin-webshop": {"environment": ("webshop",), "taskset": ("webshop",)},
    "trinity-plugin-sciworld": {"environment": ("sciworld",), "taskset": ("sciworld",)},
    "trinity-plugin-agentscope": {"workflow": ("agentscope",)},
    "trinity-plugin-vllm": {"engine": ("vllm",)},
    "trinity-plugin-verl": {"backend": ("verl",)},
    "trinity-plugin-tinker": {"backend": ("tinker",), "engine": ("tinker",)},
    "trinity-plugin-ray": {"runtime": ("ray",)},
    "trinity-plugin-redis": {"buffer": ("redis",)},
}
"""Distribution -> kind -> names."""


def home(kind: str, name: str) -> str | None:
    """The distribution that has ``kind/name``, or ``None``."""
    return next((dist for dist, kinds in HOMES.items() if name in kinds.get(kind, ())), None)
