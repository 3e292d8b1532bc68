"""What the variables and the source of the program tell: where a value came from, and what becomes of it."""
