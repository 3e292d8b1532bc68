"""Lightning with two ranks and its own launcher: `lightning_ranks.py FOLDER [--bad N] [--adapter]`."""

import argparse
import json
import logging
import os
import warnings

warnings.simplefilter("ignore")

import lightning  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def training_step(self, batch, index):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--bad", type=int, nargs="*", default=[])
    parser.add_argument("--adapter", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 6, generator=generator), torch.randn(32, 3, generator=generator)
    for index in args.bad:
        x[index, 1] = float("nan")
    callbacks = []
    if args.adapter:
        import nantrap.lightning

        callbacks.append(nantrap.lightning.Guard(run_dir=os.path.join(args.folder, "run")))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        callbacks=callbacks,
    )
    module = Module()
    trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=4))  # the ranks take every other sample
    state = module.state_dict()
    result = {
        "finite": all(bool(value.isfinite().all()) for value in state.values()),
        "weights": [value.double().sum().item().hex() for value in module.parameters()],
    }
    with open(os.path.join(args.folder, f"result-{trainer.global_rank}.json"), "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
