"""``pytest --trinity-conformance=NAME``: run the kit against a plugin or one component."""
