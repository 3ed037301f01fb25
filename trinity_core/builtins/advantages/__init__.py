"""Advantages that ship."""
