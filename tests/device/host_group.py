"""A process group whose collectives take tensors of the device: they are copied through the host and joined by gloo.

On a GPU such a collective is queued on the device, and the host goes on. Here the host does it, so `exchanges` says how
many reads of the device were not a read of the program but this copy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

exchanges = 0
"""How many tensors were copied to the host for a collective."""


class _Done(dist._Work):
    """A collective that has ended."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: Any = torch.futures.Future(devices=["sim:0"])
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


class HostGroup(dist.ProcessGroup):
    """Gloo, with a copy to the host before and a copy to the device after it."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return "host"

    def allreduce(self, tensors: list[Tensor], options: Any = None) -> Any:
        return self._through_host(tensors, lambda here: self._gloo.allreduce(here, *[options] * (options is not None)))

    def broadcast(self, tensors: list[Tensor], options: Any = None) -> Any:
        return self._through_host(tensors, lambda here: self._gloo.broadcast(here, *[options] * (options is not None)))

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any = None) -> Any:
        here = [[output.cpu() for output in row] for row in outputs]
        self._gloo.allgather(here, [each.cpu() for each in inputs]).wait()
        for row, results in zip(outputs, here, strict=True):
            for output, result in zip(row, results, strict=True):
                output.copy_(result)
        return _Done(outputs)

    def barrier(self, opts: Any = None) -> Any:
        return self._gloo.barrier()

    def _through_host(self, tensors: list[Tensor], call: Any) -> Any:
        global exchanges
        here = [tensor.cpu() for tensor in tensors]
        exchanges += sum(not tensor.is_cpu for tensor in tensors)
        call(here).wait()
        for tensor, result in zip(tensors, here, strict=True):
            if tensor is not result:
                tensor.copy_(result)
        return _Done(tensors)


def make(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return HostGroup(store, rank, size, timeout)


def register() -> None:
    """Make `init_process_group("host")` possible."""
    dist.Backend.register_backend("host", make, devices=["cpu", "sim"])
