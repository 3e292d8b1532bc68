"""A language model is trained with plain gradient descent; the rate is scaled linearly with the batch, but the batch is counted in tokens instead of sequences.
After https://github.com/facebookresearch/maskrcnn-benchmark/issues/295 (losses become nan: the rate was not adapted to the batch size by the linear rule).
True cause: a learning rate that is far too high."""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class TrainConfig:
    sequences: int = 8
    length: int = 16
    base_rate: float = 0.2
    base_batch: int = 8

    @property
    def rate(self):
        return self.base_rate * self.sequences * self.length / self.base_batch


class MixerLM(nn.Module):
    def __init__(self, vocab=17, d=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(d, 48), nn.ReLU(), nn.Linear(48, d)) for _ in range(3))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        h = self.emb(ids)
        for layer in self.layers:
            h = h + layer(h) * torch.relu(layer(h))
        return self.head(h)


def build():
    torch.manual_seed(0)
    cfg = TrainConfig()
    model = MixerLM()
    opt = torch.optim.SGD(model.parameters(), lr=cfg.rate, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 17, (cfg.sequences, cfg.length + 1), generator=g) for _ in range(6)]

    def loss_fn(m, ids):
        return nn.functional.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_gradient",), module="loss", phase="forward", op="aten.mul", also_module=("layers.0.0", "layers.0.2", "layers.1.0"), also_op=("aten.addmm", "aten.add"), first_bad_step=8, why="with a hundredth of the rate the run stays finite"))
