"""The README as the page of the package on PyPI: links to files of the repository become addresses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = "https://github.com/nantrap/nantrap/blob/main/"


class CustomMetadataHook(MetadataHookInterface):
    """Called by hatchling when it builds the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README with absolute links."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        absolute = re.sub(r"\]\((?!https?:|#)", f"]({REPOSITORY}", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute}
