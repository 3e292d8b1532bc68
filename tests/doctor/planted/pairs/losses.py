import torch
import torch.nn.functional as F


def pair_loss(a, b, temperature=0.1):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    close = a @ b.T / temperature
    loss = -torch.log_softmax(close, dim=-1).diagonal().mean()
    loss *= 2 * temperature
    return loss
