"""`nantrap run`: guards a script without changes to it. README.md says in which order to read the files."""
