"""nantrap: stops NaN and Inf before they reach the weights, names the guilty operation, proves the cause."""
