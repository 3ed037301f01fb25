"""The conformance kit: what a plugin author runs, and what this project runs on its own components."""
