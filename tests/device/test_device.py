"""The simulated device is strict: what fails on a GPU fails on it, and what waits for a GPU is counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from device.simulated import counted


def on_device(*size: int) -> Tensor:
    return torch.randn(*size, device="sim")


def test_results_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    here = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    there = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    there.load_state_dict(here.state_dict())
    there.to("sim")
    x = torch.randn(5, 2, 6, 6)
    for model, batch in ((here, x), (there, x.to("sim"))):
        model(batch).square().mean().backward()
    for (name, left), (_, right) in zip(here.named_parameters(), there.named_parameters(), strict=True):
        assert left.grad is not None
        assert right.grad is not None
        assert torch.equal(left.grad, right.grad.cpu()), name
    for left, right in zip(here.buffers(), there.buffers(), strict=True):
        assert torch.equal(left, right.cpu())


def test_the_host_cannot_touch_its_memory() -> None:
    code = "import ctypes, torch; from device import simulated; simulated.start(); x = torch.ones(4, device='sim')\n"
    reads = "ctypes.string_at(x.data_ptr(), 4)"
    folder = Path(__file__).resolve().parents[1]
    ended = subprocess.run([sys.executable, "-c", code + reads], cwd=folder, capture_output=True, timeout=120)
    assert ended.returncode == -11, ended.stderr  # a segmentation fault
    with pytest.raises(TypeError, match="can't convert sim:0 device type tensor to numpy"):
        on_device(2).numpy()


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match=r"same device.* sim:0 and cpu"):
        on_device(3) + torch.ones(3)
    with pytest.raises(RuntimeError, match=r"same device.* sim:0 and sim:1"):
        on_device(3) + torch.ones(3, device="sim:1")
    assert (on_device(3) + torch.tensor(1.0)).device.index == 0  # a single number of the host is an argument
    assert torch.equal(torch.ones(3, device="sim:1").to("sim:0").cpu(), torch.ones(3))


def test_reads_that_block_are_counted() -> None:
    x = on_device(4)
    for read in (
        lambda: x.sum().item(),
        lambda: x.cpu(),
        lambda: x.nonzero(),
        lambda: x[x > 0],
        lambda: bool(x.sum() > 0),
        lambda: torch.equal(x, x),
        lambda: torch.tensor([1.0], device="sim"),  # an ordinary copy to the device waits for it as well
    ):
        with counted() as seen:
            read()
        assert seen[0].blocking_reads == 1, seen[0].waits


def test_what_does_not_block_is_not_counted() -> None:
    x, pinned = on_device(4), torch.empty(4).pin_memory()
    with counted() as seen:
        y = torch.where(x > 0, x, 0.0) * 2
        y[torch.zeros(1, dtype=torch.long, device="sim")] = 1.0
        pinned.copy_(y, non_blocking=True)
        torch.Event(device="sim").record()
        torch.zeros(3, device="sim").fill_(2.0)
    assert seen[0].blocking_reads == 0, seen[0].waits
    assert seen[0].copies_async == 1


def test_a_copy_that_was_not_waited_for_holds_garbage() -> None:
    x, pinned, event = on_device(4), torch.empty(4).pin_memory(), torch.Event(device="sim")
    pinned.copy_(x, non_blocking=True)
    event.record()
    later = torch.empty(4).pin_memory()
    later.copy_(x, non_blocking=True)
    assert pinned.isnan().all()
    event.synchronize()
    assert torch.equal(pinned, x.cpu())
    assert later.isnan().all() or torch.equal(later, x.cpu())  # `x.cpu()` above has waited for everything


def test_an_event_is_waited_for_without_emptying_the_queue() -> None:
    x, event = on_device(256, 256), torch.Event(device="sim")
    with counted() as seen:
        x = x @ x
        event.record()
        for _ in range(200):
            x = x @ x
        assert not torch.accelerator.current_stream().query()
        event.synchronize()
    assert seen[0].blocking_reads == 0
    assert seen[0].host_us < seen[0].device_us


def test_each_device_draws_from_its_own_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, other = on_device(3), torch.randn(3, device="sim:1")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.cpu(), other.cpu())  # the same seed
    assert not torch.equal(first, on_device(3))
    torch.manual_seed(1)
    assert torch.equal(first, on_device(3))
    drawn = torch.randn(3, device="sim", generator=torch.Generator(device="sim").manual_seed(1))
    assert torch.equal(first, drawn)


def test_memory_is_counted_and_can_run_out() -> None:
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    x = torch.empty(2**20, device="sim")
    assert torch.accelerator.memory_allocated() - before == 2**22
    del x
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() >= before + 2**22
    torch.ops.sim.set_capacity(0, before + 2**20)
    with pytest.raises(torch.OutOfMemoryError, match="sim out of memory"):
        torch.empty(2**20, device="sim")


def test_autocast_and_a_loss_scaler() -> None:
    model = nn.Linear(4, 4).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("sim", init_scale=2.0**20)
    with torch.autocast("sim", dtype=torch.float16):
        out = model(on_device(2, 4))
        assert out.dtype is torch.float16
        loss = out.float().square().mean() * 1e4
    before = model.weight.detach().clone()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before)  # the gradients overflowed in half precision
    assert scaler.get_scale() == 2.0**19


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}])
def test_many_tensors_are_few_kernels(options: dict[str, bool]) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(60))).to("sim")
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for _ in range(2):
        model(on_device(2, 4)).sum().backward()
        with counted() as seen:
            optimizer.step()
        optimizer.zero_grad()
    assert seen[0].kernels <= 60
    assert seen[0].blocking_reads == 0


def test_an_event_of_before_has_happened_when_counting_begins_again() -> None:
    torch.ops.sim.set_dry(True)
    x, event = on_device(2048, 2048), torch.Event(device="sim")
    with counted() as seen:
        for _ in range(50):
            x @ x
        event.record()
    with counted() as again:
        event.synchronize()
        x + x
    assert seen[0].makespan_us > 1000
    assert again[0].event_waits == 0
    assert again[0].makespan_us < 100


def test_shapes_alone_need_no_memory_and_take_the_same_time() -> None:
    def step(n: int) -> float:
        x = torch.empty(n, n, device="sim")
        with counted() as seen:
            total = (x @ x).sum()
            assert total.item() == 0.0 or not dry
        return seen[0].makespan_us

    dry = False
    times = [step(64)]
    torch.ops.sim.set_dry(True)
    dry = True
    times += [step(64), step(100_000)]
    torch.ops.sim.set_dry(False)
    assert times[0] == times[1]
    assert times[2] == pytest.approx(2 * 1e15 / 150e6, rel=0.01)


def test_integers_are_counted_as_on_cuda() -> None:
    values = torch.tensor([0, 1, 1, 3], device="sim")
    assert torch.histc(values, bins=4, min=0, max=3).tolist() == [1, 2, 0, 1]


def test_streams_run_side_by_side() -> None:
    torch.ops.sim.set_dry(True)
    other = torch.Stream(device="sim")
    x = on_device(1024, 1024)
    with counted() as seen:
        x @ x
        with other:
            x @ x
        torch.accelerator.synchronize()
    both = seen[0].makespan_us
    with counted() as seen:
        x @ x
        x @ x
        torch.accelerator.synchronize()
    assert both < seen[0].makespan_us
