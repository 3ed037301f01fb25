"""Losses that ship."""
