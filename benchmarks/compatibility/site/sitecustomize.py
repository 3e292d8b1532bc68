"""Loaded by every trial before the script: seeds, records the final weights, puts in the one NaN.

COMPAT_WEIGHTS  a file for what is in the optimizers' tensors when the process ends.
COMPAT_POISON   loader:N         the first floating-point tensor of the N-th batch of any DataLoader holds a NaN
                module:CLASS:N   the N-th training call of a module of that class gives a NaN, and so does every call
                                 with the same input until two steps are taken: a replay sees it, an epoch does not
                reward:N         the N-th reward of a gymnasium environment is NaN
                input:N:VALUE    the value in the first floating-point input of the N-th outermost call of a model in
                                 training, or, where all are integers, of the first call inside it that has one
                param:N:VALUE    the value in the first parameter after the N-th step of any optimizer
                rate:N:VALUE     the learning rate of every group from the N-th step until one is made with it
                target:N:VALUE   the value in the target of the N-th call of a regression loss
COMPAT_PRETEND  accelerators: the CPU says that it is two accelerators

The same file serves the runs with and without nantrap, and the script stays as it was published.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import hashlib
import importlib.abc
import importlib.metadata
import importlib.util
import json
import multiprocessing.util
import os
import random
import sys
import types
from pathlib import Path

PROCESS = os.getpid()
KIND, _, PLACE = os.environ.get("COMPAT_POISON", "").partition(":")
optimizers: list = []
owners: dict = {}


def first_float(batch, seen=0):
    """The first floating-point tensor in a batch of any nesting."""
    import torch

    if isinstance(batch, torch.Tensor):
        return batch if batch.is_floating_point() and batch.numel() else None
    if seen > 6:
        return None
    if hasattr(batch, "to_dict") and not isinstance(batch, dict):
        batch = batch.to_dict()
    if isinstance(batch, dict):
        batch = batch.values()
    elif hasattr(batch, "__dict__") and not isinstance(batch, (list, tuple)):
        batch = vars(batch).values()
    elif not isinstance(batch, (list, tuple)):
        return None
    found = (first_float(item, seen + 1) for item in batch)
    return next((tensor for tensor in found if tensor is not None), None)


def poison_loader(number):
    """The `number`-th batch that any DataLoader of this process hands out gets a NaN."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    following, handed_out = _BaseDataLoaderIter.__next__, 0

    @functools.wraps(following)
    def __next__(self):
        nonlocal handed_out
        batch = following(self)
        handed_out += 1
        if handed_out == number:
            tensor = first_float(batch)
            if tensor is None:
                raise RuntimeError("the poisoned batch has no floating-point tensor")
            tensor[(0,) * tensor.dim()] = float("nan")
        return batch

    _BaseDataLoaderIter.__next__ = __next__


def poison_module(name, number):
    """The `number`-th training call of a class of torch.nn gives a NaN, and so does its replay."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    kind = getattr(torch.nn, name)
    forward, calls, guilty, steps = kind.forward, 0, None, 0

    def count(*_):
        nonlocal guilty, steps
        steps += guilty is not None
        if steps == 2:
            guilty = None

    @functools.wraps(forward)
    def poisoned(self, *arguments, **named):
        nonlocal calls, guilty
        result = forward(self, *arguments, **named)
        if not arguments:
            return result
        calls += self.training and torch.is_grad_enabled() and guilty is None
        if calls == number and guilty is None and steps == 0:
            guilty = arguments[0].detach().clone()
        if guilty is not None and torch.equal(guilty, arguments[0]):
            hole = torch.zeros_like(result)
            hole[(0,) * hole.dim()] = float("nan")
            result = result + hole
        return result

    kind.forward = poisoned
    register_optimizer_step_post_hook(count)


def poison_reward(number):
    """The `number`-th reward of the environments is NaN."""
    from gymnasium.wrappers import OrderEnforcing

    step, taken = OrderEnforcing.step, 0

    @functools.wraps(step)
    def poisoned(self, action):
        nonlocal taken
        seen, reward, *rest = step(self, action)
        taken += 1
        return (seen, float("nan") if taken == number else reward, *rest)

    OrderEnforcing.step = poisoned


def poison_input(number, value):
    """The `number`-th outermost call of a module in training gets the value, written where the program keeps it."""
    import torch
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    depth, calls, due = 0, 0, False

    def before(module, arguments):
        nonlocal depth, calls, due
        counted = (
            depth == 0 and module.training and torch.is_grad_enabled() and next(module.parameters(), None) is not None
        )
        depth += 1
        calls += counted
        due = due or (counted and calls == number)
        tensor = first_float(arguments) if due else None
        if tensor is not None:
            due = False
            held = tensor.data._values() if tensor.is_sparse else tensor.data
            held[(0,) * held.dim()] = value

    def after(module, arguments, result):
        nonlocal depth
        depth -= 1

    register_module_forward_pre_hook(before)
    register_module_forward_hook(after, always_call=True)


def poison_step(kind, number, value):
    """After so many steps the first parameter holds the value, or every learning rate is it until the next step."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps, usual = 0, None

    def after(optimizer, *_):
        nonlocal steps, usual
        steps += 1
        if steps == number and kind == "param":
            first = optimizer.param_groups[0]["params"][0].data
            first = getattr(first, "_local_tensor", first)
            first[(0,) * first.dim()] = value
        elif steps == number:
            usual = [(group, group["lr"]) for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = value
        elif usual is not None and usual[0][0] is optimizer.param_groups[0]:
            for group, rate in usual:
                group["lr"] = rate
            usual = None

    register_optimizer_step_post_hook(after)


def poison_target(number, value):
    """The `number`-th call of a regression loss gets the value in its target."""
    import torch

    calls = 0

    def wrap(name):
        original = getattr(torch.nn.functional, name)

        @functools.wraps(original)
        def loss(given, target, *arguments, **named):
            nonlocal calls
            calls += 1
            if calls == number:
                target.data[(0,) * target.dim()] = value
            return original(given, target, *arguments, **named)

        setattr(torch.nn.functional, name, loss)

    for name in ("mse_loss", "smooth_l1_loss", "l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"):
        wrap(name)


def watch_optimizers():
    """Keep every optimizer, and the modules that own its parameters, for the record at the end."""
    import torch

    initialise = torch.optim.Optimizer.__init__

    @functools.wraps(initialise)
    def __init__(self, *arguments, **named):
        initialise(self, *arguments, **named)
        optimizers.append(self)
        mine = {id(parameter) for group in self.param_groups for parameter in group["params"]}
        for thing in gc.get_objects():
            if torch.nn.Module in type(thing).__mro__ and "_parameters" in vars(thing):
                held = {id(parameter) for parameter in thing._parameters.values()}
                if held & mine:
                    owners[id(thing)] = thing

    torch.optim.Optimizer.__init__ = __init__


def record():
    """Write a digest of the weights, buffers and optimizer state, and how many values in each are not finite."""
    if os.getpid() != PROCESS or "torch" not in sys.modules:
        return
    import torch

    child = multiprocessing.parent_process() is not None
    name = os.environ["COMPAT_WEIGHTS"] + f".{os.environ.get('RANK', '')}" + (f".{os.getpid()}" if child else "")
    if not optimizers and (child or "RANK" not in os.environ) and Path(name).exists():
        return

    def summary(tensors):
        digests, bad = [], 0
        for tensor in tensors:
            plain = getattr(tensor, "_local_tensor", tensor).detach().cpu().contiguous()
            digests.append(hashlib.sha256(plain.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest())
            bad += int((~torch.isfinite(plain)).sum()) if plain.is_floating_point() else 0
        whole = hashlib.sha256("".join(sorted(digests)).encode())  # the collector lists modules in any order
        return {"tensors": len(tensors), "sha256": whole.hexdigest()[:16], "not_finite": bad}

    parameters = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    buffers = [b for m in owners.values() for b in m._buffers.values() if b is not None]
    state = [v for o in optimizers for s in o.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    written = {
        "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
        "weights": summary(parameters),
        "buffers": summary(buffers),
        "state": summary(state),
    }
    Path(name).write_text(json.dumps(written))


def before_torchvision():
    """Declare the two operators torchvision's import needs where its compiled half does not fit this torch."""
    import torch

    library = Path(importlib.metadata.distribution("torchvision").locate_file("torchvision/_C.so"))
    try:
        torch.ops.load_library(library)
    except OSError:
        declared = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        before_torchvision.library = declared


def after_torch():
    """A seed for scripts that set none, the record, and the NaN."""
    import torch

    torch.manual_seed(0)
    watch_optimizers()
    if KIND == "loader":
        poison_loader(int(PLACE))
    elif KIND == "module":
        name, _, number = PLACE.partition(":")
        poison_module(name, int(number))
    elif KIND in ("input", "param", "rate", "target"):
        number, _, value = PLACE.partition(":")
        if KIND in ("param", "rate"):
            poison_step(KIND, int(number), float(value))
        else:
            {"input": poison_input, "target": poison_target}[KIND](int(number), float(value))
    if os.environ.get("COMPAT_PRETEND") == "accelerators":
        pretend_accelerators()


def pretend_accelerators():
    """Scripts that ask for two accelerators get two ranks on the CPU."""
    import torch
    import torch.distributed as dist

    torch.accelerator.is_available = lambda: True
    torch.accelerator.device_count = lambda: 2
    torch.accelerator.current_accelerator = lambda check_available=False: (
        None if check_available else torch.device("cpu")
    )
    torch.accelerator.device_index = lambda *_: contextlib.nullcontext()
    torch.accelerator.set_device_index = lambda *_: None
    join = dist.init_process_group

    @functools.wraps(join)
    def init_process_group(*arguments, device_id=None, **named):
        return join(*arguments, **named)

    dist.init_process_group = init_process_group


def after_numpy():
    """Scripts that draw from numpy without a seed draw the same in every run."""
    import numpy

    numpy.random.seed(0)


def after_gymnasium():
    """Scripts that train until the task is solved end early; poison the reward, where that is asked for."""
    import gymnasium

    gymnasium.registry["CartPole-v1"].reward_threshold = 25.0
    if KIND == "reward":
        poison_reward(int(PLACE))


def after_cifar():
    """The pictures are not the published ones, so neither are their checksums."""
    sys.modules["torchvision.datasets.cifar"].check_integrity = lambda *_: True


def after_requests():
    """A download takes the file of that name from the folder that the script runs in."""
    import requests

    @contextlib.contextmanager
    def get(address, **_):
        with Path(address.rpartition("/")[2]).open("rb") as file:
            yield types.SimpleNamespace(raw=file)

    requests.get = get


class Hooks(importlib.abc.MetaPathFinder):
    """Runs a function before or after the first import of a package."""

    before = {"torchvision": before_torchvision}  # noqa: RUF012
    after = {  # noqa: RUF012
        "torch": after_torch,
        "numpy": after_numpy,
        "gymnasium": after_gymnasium,
        "requests": after_requests,
        "torchvision.datasets.cifar": after_cifar,
    }
    looking = False

    def find_spec(self, name, path=None, target=None):
        """The spec the other finders give, with our functions around its execution."""
        if self.looking or (name not in self.before and name not in self.after):
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            self.before.pop(name, bool)()
            execute(module)
            self.after.pop(name, bool)()

        spec.loader.exec_module = exec_module
        return spec


if "COMPAT_WEIGHTS" in os.environ:
    random.seed(0)
    sys.meta_path.insert(0, Hooks())
    atexit.register(record)
    multiprocessing.util.Finalize(None, record, exitpriority=0)  # a child of multiprocessing ends without `atexit`
