"""What this package adds to Trinity. Imports nothing heavy: components load when a run names them."""

from trinity_core import hookimpl


@hookimpl
def trinity_conf() -> str:
    return "pkg://trinity_math_rewards.conf"


@hookimpl
def trinity_rewards() -> dict[str, str]:
    return {
        "accuracy": "trinity_math_rewards.math:Accuracy",
        "countdown": "trinity_math_rewards.countdown:CountdownReward",
        "math": "trinity_math_rewards.math:Math",
        "math_boxed": "trinity_math_rewards.math:MathBoxed",
        "math_format": "trinity_math_rewards.shape:MathFormat",
    }


@hookimpl
def trinity_tasksets() -> dict[str, str]:
    return {
        "countdown": "trinity_math_rewards.countdown_tasks:Countdown",
        "gsm8k": "trinity_math_rewards.gsm8k:Gsm8k",
    }
