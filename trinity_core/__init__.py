"""Trinity: reinforcement fine-tuning of language models on a plugin kernel.

Importing this package loads pluggy and nothing heavier.
"""

from trinity_core.markers import hookimpl
from trinity_core.openmp import wait_briefly

__version__ = "0.1.0"
__all__ = ["__version__", "hookimpl"]

wait_briefly()  # read when torch is loaded
