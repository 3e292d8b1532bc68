"""Features are standardised per file in the dataset; one sensor was unplugged in a file, its standard deviation is 0 and the column NaN.
After https://github.com/evandowning/deepreflect/issues/11 (improper normalisation sets 0 as the denominator).
True cause: the batch contains NaN."""
import numpy as np
import torch
from torch import nn


class Sensors(torch.utils.data.Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        x, y = self.files[i]
        with np.errstate(all="ignore"):
            x = (x - x.mean(0)) / x.std(0)
        return torch.from_numpy(x).float(), torch.from_numpy(y).float()


def build():
    rng = np.random.default_rng(0)
    files = [(rng.normal(20, 5, (16, 4)), rng.normal(size=(16, 1))) for _ in range(5)]
    files[3][0][:, 2] = 21.5
    ds = Sensors(files)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    return dict(model=net, optimizer=opt, batches=[ds[i] for i in range(5)], loss_fn=lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]), steps=5, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=3, bad_path="0"))
