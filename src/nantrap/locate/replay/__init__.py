"""A failed step run again: by one rank or by all, as a whole, by its update, or sample by sample."""
