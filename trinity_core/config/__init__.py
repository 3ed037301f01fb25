"""From words on the command line to a checked, frozen :class:`~trinity_core.config.schema.RunConfig`."""
