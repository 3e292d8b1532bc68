"""The version, the same as nantrap's: read by the build."""

__version__ = "0.1.0"
