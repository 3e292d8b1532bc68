"""Checks before the first step: configuration and source, the data files, the model itself.

Each check has its own folder and is imported only when it is used.
"""
