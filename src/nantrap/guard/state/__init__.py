"""What a step may change: copied before it, restored after a bad one, and older copies of it for a rollback."""
