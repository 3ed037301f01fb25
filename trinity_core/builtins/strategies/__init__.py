"""Built-in sample strategies."""
