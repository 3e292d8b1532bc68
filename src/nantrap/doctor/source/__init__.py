"""Python files by their syntax tree: names, calls, the order of a training step. Nothing is run."""
