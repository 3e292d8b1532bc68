"""Ray Train: two workers, a gate at `report`, and no further attempt where the same failure would come again.

python ray_train.py [--fault SAMPLE] [--storage FOLDER]
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig

import nantrap


def train(config: dict[str, Any]) -> None:
    """What each worker runs, and what an attempt after a failure runs again."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = ray.train.get_context().get_world_rank()
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(40, 4)
    if config["fault"] is not None:
        data[config["fault"]] = float("nan")
    policy = nantrap.Policy(max_consecutive_skips=0, then="stop")
    guard = nantrap.Guard(model, optimizer, policy=policy, run_dir=config["run_dir"])
    try:
        for batch in data.split(4):
            outcome = guard.attempt(lambda batch: model(batch).square().mean(), batch)
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = None
                if rank == 0 and outcome.step % 5 == 4:  # saves nothing that is not finite
                    nantrap.CheckpointStore(folder).save(step=outcome.step, model=model)
                    checkpoint = Checkpoint.from_directory(folder)
                ray.train.report({"loss": outcome.loss, "applied": outcome.applied}, checkpoint=checkpoint)
    except nantrap.NonFiniteError as error:
        if error.kind != "repeats":
            raise  # Ray makes another attempt
        # the same would happen again: the worker ends without an error, so Ray makes no further attempt
        if rank == 0:
            Path(config["run_dir"], "stopped.txt").write_text(str(error).partition("\n")[0])


def main() -> int:
    """Train on two workers, and say how it ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", type=int)
    parser.add_argument("--storage", default=os.path.abspath("ray_results"))
    arguments = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"fault": arguments.fault, "run_dir": os.path.join(arguments.storage, "nantrap")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="train", storage_path=arguments.storage, failure_config=FailureConfig(max_failures=3)
        ),
    )
    stopped = Path(arguments.storage, "nantrap", "stopped.txt")
    stopped.unlink(missing_ok=True)
    result = trainer.fit()
    if stopped.exists():
        print(f"stopped, and not tried again: {stopped.read_text()}")
        return 3
    print(f"trained, the last checkpoint with {result.metrics}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
