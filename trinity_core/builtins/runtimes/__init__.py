"""Where explorer, buffer and trainer run."""
