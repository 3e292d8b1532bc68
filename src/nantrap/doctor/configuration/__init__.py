"""Settings in files of every kind, with their place and their meaning."""
