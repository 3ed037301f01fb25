"""Backends that ship."""
