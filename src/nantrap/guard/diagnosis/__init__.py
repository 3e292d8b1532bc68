"""From a bad step to its incident: where it began and why. Runs only after a failure."""
