"""Language models that built-in backends and engines share: finding a folder, loading it, computing on it."""
