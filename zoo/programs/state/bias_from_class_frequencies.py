"""The output bias is set to the log frequency of the classes in a sample of the data; one class does not occur and its bias is -inf.
After https://github.com/perslev/MultiPlanarUNet/issues/24 (divide by zero in log while setting the bias weights).
True cause: the program wrote a non-finite value into a parameter."""
import torch
import torch.nn as nn


def set_bias_weights(layer, labels, classes):
    freq = torch.bincount(labels.flatten(), minlength=classes).float() / labels.numel()
    with torch.no_grad():
        layer.bias.copy_(torch.log(freq))


def build():
    torch.manual_seed(8)
    g = torch.Generator().manual_seed(9)
    x, y = torch.randn(5, 2, 4, 8, 8, generator=g), torch.randint(0, 3, (5, 2, 8, 8), generator=g)      # class 3 is rare
    y[2, 0, 0, 0] = 3
    net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    set_bias_weights(net[2], y[:2], 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    return dict(model=net, optimizer=opt, batches=[(a, b) for a, b in zip(x, y)], loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), steps=5, autocast_dtype=None,
                truth=dict(cause="state_overwritten", also=("log_of_zero", "corrupt_checkpoint", "bad_initialisation"), module="2", phase="state", op="state", first_bad_step=0, state="2.bias", param="2.bias", poisoned_state=["2.bias"]))
