"""The store: `CheckpointStore`, the finite gate, the last good checkpoint, the check after a resume."""
