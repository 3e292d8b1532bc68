"""The ways in which ranks train one model together, small enough to run all of them on two processes.

`build(way)` gives the parts of a training loop. Each way averages gradients in its own place: in hooks of the backward
pass, in a communication hook, in sharded layers, in the script; with ZeRO each rank updates some of the parameters.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WAYS = (
    "ddp",
    "no_sync",
    "unused",
    "static",
    "zero",
    "view",
    "hook",
    "sharded",
    "tensor_parallel",
    "manual",
    "statistics",
)
NAN = float("nan")


class Synchronised(nn.BatchNorm1d):
    """Statistics of all ranks, as `SyncBatchNorm` has them; that one wants a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.detach().mean(0)
        if self.training:
            dist.all_reduce(mean)
            mean = mean / dist.get_world_size()
            assert self.running_mean is not None
            with torch.no_grad():
                self.running_mean.lerp_(mean, 0.1)
        return (x - mean) * self.weight + self.bias


class Net(nn.Module):
    """Three layers, and a buffer that a forward pass writes and that takes no part in the loss."""

    energy: Tensor

    def __init__(self, *, synchronised: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.norm = Synchronised(16) if synchronised else nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 4)
        self.register_buffer("energy", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.body(x))
        with torch.no_grad():
            self.energy += 1.0
        return self.head(torch.relu(hidden))


class Faulty(torch.optim.AdamW):
    """AdamW whose update goes wrong when asked: one weight of this rank becomes NaN."""

    goes_wrong = False

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        if self.goes_wrong:
            with torch.no_grad():
                parameter = next(p for group in self.param_groups for p in group["params"] if local(p).numel())
                local(parameter).view(-1)[0] = NAN
        return result


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor whose parts the ranks hold."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@dataclass(frozen=True)
class Together:
    """What a loop of one way is made of."""

    inner: Net
    model: nn.Module
    optimizer: torch.optim.Optimizer
    owner: torch.optim.Optimizer
    micros: int
    group: Any = None

    @contextlib.contextmanager
    def quiet(self, micro: int) -> Iterator[None]:
        """A micro-batch that is not the last one averages nothing."""
        if self.micros > 1 and micro < self.micros - 1:
            with self.model.no_sync():  # type: ignore[operator]
                yield
        else:
            yield

    def average(self) -> None:
        """What the script does itself between the backward pass and the step."""
        if self.group is None:
            return
        for parameter in self.inner.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self.group)
                parameter.grad /= dist.get_world_size()


def build(way: str, *, faulty: bool = True) -> Together:
    """Model and optimizer of one way.

    Args:
        way: one of `WAYS`.
        faulty: the optimizer can go wrong; otherwise torch's own, whose updates the guard knows.
    """
    torch.manual_seed(0)
    inner = Net(synchronised=way == "statistics")
    kind = Faulty if faulty else torch.optim.AdamW

    def make(model: nn.Module) -> torch.optim.Optimizer:
        return kind(model.parameters(), lr=1e-2, foreach=False)

    if way == "sharded":
        from torch.distributed.fsdp import fully_shard

        for layer in (inner.body, inner.head):
            fully_shard(layer)
        fully_shard(inner)
        optimizer = make(inner)
        return Together(inner, inner, optimizer, optimizer, 1)
    if way == "tensor_parallel":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        parallelize_module(inner, mesh, {"body": ColwiseParallel(output_layouts=Replicate())})
        optimizer = make(inner)
        return Together(inner, inner, optimizer, optimizer, 1)
    if way == "manual":
        optimizer = make(inner)
        return Together(inner, inner, optimizer, optimizer, 1, dist.group.WORLD)
    if way == "unused":
        inner.register_parameter("unused", nn.Parameter(torch.zeros(2)))
    model = DistributedDataParallel(
        inner,
        find_unused_parameters=way == "unused",
        static_graph=way == "static",
        gradient_as_bucket_view=way == "view",
    )
    if way == "hook":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        model.register_comm_hook(dist.group.WORLD, allreduce_hook)
    if way == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        zero = ZeroRedundancyOptimizer(model.parameters(), kind, lr=1e-2, foreach=False)
        return Together(inner, model, zero, zero.optim, 1)
    optimizer = make(model)
    return Together(inner, model, optimizer, optimizer, 3 if way == "no_sync" else 1)


def batch_of(way: str, rank: int, step: int, micro: int) -> tuple[Tensor, Tensor]:
    """Each rank has its own batch; layers that are split over ranks see the same one."""
    seed = 10_000 * (0 if way == "tensor_parallel" else rank) + 10 * step + micro
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 4, generator=generator)


def bits(model: nn.Module) -> list[str]:
    """Parameters bit for bit, whole where they are sharded: the same list on ranks that are equal."""
    return [hashlib.sha1(whole(p.detach()).numpy().tobytes()).hexdigest() for p in model.parameters()]
