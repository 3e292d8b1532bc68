"""The version, in one place: read by the build, by `nantrap --version` and by `run.json`."""

__version__ = "0.1.0"
