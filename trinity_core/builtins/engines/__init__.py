"""Engines that ship."""
