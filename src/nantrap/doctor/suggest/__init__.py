"""Safer settings, or bolder ones after a stable run, as a patch of the user's own files."""

from __future__ import annotations

from nantrap.doctor.suggest.edits import Edit, apply_edits, patch_of
from nantrap.doctor.suggest.ladder import edits_for

__all__ = ["Edit", "apply_edits", "edits_for", "patch_of"]
