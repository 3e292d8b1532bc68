"""From a bad step to the draft of an incident: where it began and why. Runs only after a failure."""
