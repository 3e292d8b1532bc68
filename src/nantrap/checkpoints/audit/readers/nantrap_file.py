"""The files of a `CheckpointStore`: safetensors whose header also holds the rest of the state as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from nantrap.checkpoints.audit.contents import Contents, UnreadableError
from nantrap.checkpoints.audit.readers import safetensors
from nantrap.checkpoints.audit.source import Source
from nantrap.checkpoints.store.packing import plain
from nantrap.errors import FormatError

_HEAD = b'{"__metadata__":{"nantrap.checkpoint":'


def recognise(head: bytes) -> bool:
    """A safetensors header that begins with our mark."""
    return safetensors.recognise(head) and head[8:].startswith(_HEAD)


def read(source: Source) -> Contents:
    """As safetensors; names become paths, so that each tensor is judged by its role, and the JSON becomes the tree."""
    contents = safetensors.read(source)
    metadata = contents.tree["metadata"] if isinstance(contents.tree, dict) else {}
    try:
        described = json.loads(metadata["structure"])
        tree = {name: plain(value) for name, value in described["state"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, FormatError) as error:
        raise UnreadableError("NT908", f"the description of the state in the header is damaged: {error!r}") from error
    extents = tuple(
        replace(extent, tensors=tuple(replace(t, path=_path(extent.label)) for t in extent.tensors))
        for extent in contents.extents
    )
    return replace(contents, format="nantrap", extents=extents, tree=tree)


def _path(name: str) -> tuple[str, ...]:
    """`model.blocks.0.weight` is the tensor `blocks.0.weight` of the section `model`."""
    section, _, rest = name.partition(".")
    return (section, *rest.split(".")) if section == "optimizer" else (section, rest) if rest else (section,)
