"""The report in the forms that people and machines read."""

from __future__ import annotations

from nantrap.doctor.output.machines import as_github, as_json, as_sarif
from nantrap.doctor.output.terminal import as_text

__all__ = ["as_github", "as_json", "as_sarif", "as_text"]
