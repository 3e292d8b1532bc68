"""What a step may change: copied before it, put back after a bad one, and older copies of it for a rollback."""
