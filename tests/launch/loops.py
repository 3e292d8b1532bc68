"""Training loops as people write them, none of which knows of nantrap. Each returns its losses and its final state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Batches = list[tuple[Tensor, Tensor]]
Result = tuple[list[float], list[Tensor]]


class Net(nn.Module):
    """A linear layer, a norm with running statistics, dropout, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(torch.relu(self.norm(self.body(x)))))


def batches(count: int = 12, *, bad: int | None = None, size: int = 8) -> Batches:
    """Always the same batches; one of them may hold a NaN."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for number in range(count):
        x = torch.randn(size, 6, generator=generator)
        y = x.sum(1, keepdim=True)
        if number == bad:
            x[2, 1] = math.nan
        made.append((x, y))
    return made


def state(*modules: nn.Module) -> list[Tensor]:
    """Parameters and buffers."""
    return [t.detach().clone() for m in modules for t in (*m.parameters(), *m.buffers())]


def plain(data: Batches) -> Result:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(net)


def clipped_and_scheduled(data: Batches) -> Result:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(data))
    losses = []
    for x, y in data:
        loss = F.mse_loss(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5, error_if_nonfinite=True)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(loss.item())
    return losses, [*state(net), torch.tensor(scheduler.get_last_lr())]


def accumulated(data: Batches) -> Result:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for number, (x, y) in enumerate(data):
        loss = F.mse_loss(net(x), y) / 3
        loss.backward()
        losses.append(loss.item())
        if (number + 1) % 3 == 0:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            net.zero_grad()
    return losses, state(net)


def several_backwards(data: Batches) -> Result:
    net = Net()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        out = net(x)
        first, second = F.mse_loss(out, y), out.abs().mean()
        first.backward(retain_graph=True)
        (0.1 * second).backward()
        optimizer.step()
        losses += [first.item(), second.item()]
    return losses, state(net)


def parts_without_a_root(data: Batches) -> Result:
    body, head = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12)), nn.Linear(12, 1)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.mse_loss(head(torch.relu(body(x))), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(body, head)


def two_optimizers(data: Batches) -> Result:
    generator, judge = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
    losses = []
    for x, _ in data:
        fake = generator(torch.randn_like(x))
        of_judge.zero_grad()
        judged = judge(x).mean() - judge(fake.detach()).mean()
        judged.backward()
        of_judge.step()
        of_generator.zero_grad()
        fooled = judge(fake).mean()
        fooled.backward()
        of_generator.step()
        losses += [judged.item(), fooled.item()]
    return losses, state(generator, judge)


def two_optimizers_one_loss(data: Batches) -> Result:
    net = Net()
    first = torch.optim.SGD(net.body.parameters(), lr=1e-2)
    second = torch.optim.Adam([*net.norm.parameters(), *net.head.parameters()], lr=1e-2)
    losses = []
    for x, y in data:
        first.zero_grad()
        second.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        first.step()
        second.step()
        losses.append(loss.item())
    return losses, state(net)


def lbfgs(data: Batches) -> Result:
    net = nn.Linear(6, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
    losses = []
    for x, y in data:

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses, state(net)


def closure_of_adam(data: Batches) -> Result:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for x, y in data:

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses, state(net)


class SignDescent(torch.optim.Optimizer):
    """A third-party optimizer: the sign of a running mean."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    mean.mul_(0.9).add_(p.grad)
                    p.sub_(mean.sign(), alpha=group["lr"])


def third_party_optimizer(data: Batches) -> Result:
    net = Net()
    optimizer = SignDescent(list(net.parameters()), lr=1e-3)
    losses = []
    for x, y in data:
        net.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(net)


def scaled(data: Batches) -> Result:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.mse_loss(net(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, [*state(net), torch.tensor(scaler.get_scale())]


def scaled_and_fused(data: Batches) -> Result:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, [*state(net), torch.tensor(scaler.get_scale())]


class Checkpointed(Net):
    """The same, its body computed again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(lambda x: torch.relu(self.norm(self.body(x))), x, use_reentrant=False)
        return self.head(self.dropout(hidden))


def checkpointed(data: Batches) -> Result:
    net = Checkpointed()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(net)


def averaged(data: Batches) -> Result:
    net = Net()
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        average.update_parameters(net)
        losses.append(loss.item())
    return losses, state(net, average)


def loose_tensors(data: Batches) -> Result:
    weight = torch.zeros(6, 1, requires_grad=True)
    bias = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight, bias], lr=1e-1)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.mse_loss(x @ weight + bias, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [weight.detach().clone(), bias.detach().clone()]


def gradients_by_hand(data: Batches) -> Result:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for x, y in data:
        loss = F.mse_loss(net(x), y)
        for p, gradient in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
            p.grad = gradient
        optimizer.step()
        losses.append(loss.item())
    return losses, state(net)


def lazy_layers(data: Batches) -> Result:
    net = nn.Sequential(nn.LazyLinear(12), nn.ReLU(), nn.LazyLinear(1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(net)


def validated(data: Batches) -> Result:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for x, y in data:
        net.train()
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            losses += [loss.item(), F.mse_loss(net(data[0][0]), data[0][1]).item()]
    return losses, state(net)


def compiled(data: Batches) -> Result:
    net = cast("Net", torch.compile(Net(), backend="aot_eager"))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(net)


LOOPS: dict[str, Callable[[Batches], Result]] = {
    loop.__name__: loop
    for loop in (
        plain, clipped_and_scheduled, accumulated, several_backwards, parts_without_a_root, two_optimizers,
        two_optimizers_one_loss, lbfgs,
        closure_of_adam, third_party_optimizer, scaled, scaled_and_fused, checkpointed, averaged, loose_tensors,
        gradients_by_hand, lazy_layers, validated, compiled,
    )
}  # fmt: skip
