"""Where tests run side by side, each process has one thread, and so has whatever it starts: threads that wait for each
other's core cost more than they bring."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports numpy or torch
