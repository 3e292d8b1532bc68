"""One reward function returns None for a completion that it cannot parse, which the trainer stores as NaN; the mean of the group is NaN.
After https://github.com/modelscope/ms-swift/issues/8123 (NaN advantages when any reward function returns None).
True cause: the batch contains a NaN reward."""
import torch
import torch.nn as nn


def format_reward(texts):
    return [None if "<answer>" not in t else 1.0 for t in texts]


def length_reward(texts):
    return [len(t) / 20 for t in texts]


def collate(texts, x):
    table = [[float("nan") if v is None else v for v in f(texts)] for f in (format_reward, length_reward)]
    return {"x": x, "rewards": torch.tensor(table).T}


def build():
    torch.manual_seed(3)
    net = nn.Linear(5, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(4)
    ok = ["<answer>4", "<answer>12", "so <answer>3", "<answer>"]
    batches = [collate(ok, torch.randn(4, 5, generator=g)) for _ in range(3)]
    batches.insert(2, collate(["<answer>4", "<answer>12", "I do not know", "<answer>9"], torch.randn(4, 5, generator=g)))

    def loss_fn(m, b):
        mean, std = b["rewards"].mean(0), b["rewards"].std(0)
        adv = ((b["rewards"] - mean) / (std + 1e-8)).sum(1)
        return -(adv * torch.log_softmax(m(b["x"]), 1)[:, 0]).mean()

    return dict(model=net, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=2, bad_path="rewards", sample=2))
