"""Text inside GitHub's workflow commands, escaped so that no name ends its field or begins a command of its own."""

from __future__ import annotations


def command_text(text: str) -> str:
    """The message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def command_property(text: str) -> str:
    """The value of a property of a workflow command: `title=...`."""
    return command_text(text).replace(":", "%3A").replace(",", "%2C")
