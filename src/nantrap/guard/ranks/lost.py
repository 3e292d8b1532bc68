"""An error of the transport between ranks, in words: another rank is gone."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from nantrap.errors import RankLostError

_TRANSPORTS = ("gloo", "NCCL", "c10d", "ProcessGroup", "pair closure")
"""One of these is in the text of an error by which a collective ends when another rank does not take part."""


def lost_rank_in_words(error: BaseException | None, run_dir: str | Path | None) -> str:
    """Says what it means that a collective of the script ended with this error; empty if none did.

    The error of the transport names an address and a port. A rank that is gone has said why in its own output.
    """
    if not isinstance(error, RuntimeError) or isinstance(error, RankLostError) or not several_ranks():
        return ""
    if not isinstance(error, dist.DistError) and not any(name in str(error) for name in _TRANSPORTS):
        return ""
    size, rank = dist.get_world_size(), dist.get_rank()
    who = f"rank {1 - rank}" if size == 2 else "another rank"
    where = "" if run_dir is None else f". The last lines of {run_dir}/journal-r*.jsonl say what each rank did"
    return f"rank {rank} lost {who}, which has ended, has died, or took longer than the process group's timeout{where}"


def several_ranks() -> bool:
    """Whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
