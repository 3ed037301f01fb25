"""A policy that is a table: every test of a whole run in milliseconds, with nothing about the run made up.

The state of a position is a hash of *all* tokens before it, so the table is a true autoregressive policy that can learn a
finite taskset exactly; the ``fake`` engine samples from it and the ``fake`` backend trains it.
"""
