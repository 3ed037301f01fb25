"""Corrections that ship."""
