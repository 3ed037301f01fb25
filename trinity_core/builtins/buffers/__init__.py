"""Built-in ledgers."""
