"""Programs that fail in training, each with its true step, place and cause: a benchmark for any tool."""
