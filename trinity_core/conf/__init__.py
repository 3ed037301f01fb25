"""Option files that ship with the kernel: one folder per kind, and recipes."""
