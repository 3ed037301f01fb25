"""Watchers of a run."""
