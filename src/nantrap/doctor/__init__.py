"""Checks before the first step: configuration and source, the data files, the model itself.

Each check is a folder of its own and is imported only when it is used.
"""
