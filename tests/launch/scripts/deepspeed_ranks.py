"""Two ranks train a small model with DeepSpeed, once for each case that is given, and write what they ended with.

    python -m torch.distributed.run --nproc-per-node 2 deepspeed_ranks.py FOLDER [--adapter] 2:bf16:nan_sample:1 ...

A case is the stage of ZeRO, the precision, the fault and the number of micro-batches. The fault is on rank 1 in step 2,
in the last micro-batch or in the first.
"""

import json
import math
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")
warnings.filterwarnings("ignore")

import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.accelerator import get_accelerator  # noqa: E402
from torch import nn  # noqa: E402

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STEPS = 4


class Net(nn.Module):
    """A small classifier with a fault that can be switched on."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.norm = nn.LayerNorm(32)
        self.last = nn.Linear(32, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.fault = ""

    def forward(self, x):
        self.calls += 1
        hidden = torch.relu(self.first(x))
        if self.fault == "inf_gradient":
            hidden = hidden + (hidden * 0).abs().sqrt()
        if self.fault == "overflow":
            hidden = (hidden * 3e4).square() * 1e-9
        return self.last(self.norm(hidden))


def build(stage, precision, fault, accumulation):
    """The engine of a case."""
    torch.manual_seed(0)
    model = Net()
    if fault == "nan_weights":
        model.first.weight.data[3, 0] = math.nan
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
    if fault == "offload":
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    if precision != "fp32":
        config[precision] = {"enabled": True}
    if precision == "fp16":
        power = 19 if fault == "search" else 8
        config["fp16"] |= {"initial_scale_power": power, "loss_scale_window": 3, "hysteresis": 1}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine, optimizer


def train(engine, optimizer, precision, fault, accumulation):
    """Four steps. Returns what the rank ended with; equal bits give equal text."""
    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    losses = []
    for step in range(STEPS):
        for micro in range(accumulation):
            x = torch.randn(4, 8, generator=generator)
            labels = torch.randint(4, (4,), generator=generator)
            bad = step == 2 and torch.distributed.get_rank() == 1
            bad &= micro == (0 if fault == "nan_sample_first" else accumulation - 1)
            engine.module.fault = fault if bad else ""
            if bad and fault.startswith("nan_sample"):
                x[3, 1] = math.nan
            logits = engine(x.to(DTYPES[precision]))
            loss = nn.functional.cross_entropy(logits.float(), labels)
            engine.backward(loss)
            engine.step()
        losses.append(str(loss.item()))
    moments = [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    shards = list(optimizer.state)
    tensors = [tensor.detach().double().flatten() for tensor in [*shards, *moments]]
    return {
        "losses": losses,
        "state": [tensor.sum().item() for tensor in tensors] + [tensor.square().sum().item() for tensor in tensors],
        "skipped": engine.skipped_steps,
        "calls": engine.module.calls.item(),
        "scale": float(getattr(engine.optimizer, "loss_scale", 1.0)),
    }


folder = Path(sys.argv[1])
adapter = "--adapter" in sys.argv
torch.set_num_threads(1)
get_accelerator().is_fp16_supported = lambda: True  # torch computes in float16 on every CPU
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo alone: nothing is compiled
deepspeed.init_distributed("gloo")
for name in [each for each in sys.argv[2:] if ":" in each]:
    stage, precision, fault, accumulation = name.split(":")
    engine, optimizer = build(int(stage), precision, fault, int(accumulation))
    if adapter:
        import nantrap.deepspeed

        engine = nantrap.deepspeed.guard(engine, run_dir=folder / name.replace(":", "-"), quiet=True)
    result = train(engine, optimizer, precision, fault, int(accumulation))
    if fault == "save":
        result["saved"] = [engine.save_checkpoint(str(folder / "good"))]
        for parameter in optimizer.state if torch.distributed.get_rank() == 1 else ():
            parameter.data.view(-1)[0] = math.nan
        result["saved"].append(engine.save_checkpoint(str(folder / "bad")))
    engine.destroy()
    kind = "adapter" if adapter else "plain"
    (folder / f"{name.replace(':', '-')}-{kind}-{torch.distributed.get_rank()}.json").write_text(json.dumps(result))
torch.distributed.destroy_process_group()
