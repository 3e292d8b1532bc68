"""What is followed while a run is healthy: spikes, ranges of batches, magnitudes, watched values, bad samples."""
