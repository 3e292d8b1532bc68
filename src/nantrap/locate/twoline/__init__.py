"""A failed step without a function that computes its loss: from its source, or from the graph that is left."""
