"""The ranks that train one model: one verdict for all of them, and what one may run without the others."""
