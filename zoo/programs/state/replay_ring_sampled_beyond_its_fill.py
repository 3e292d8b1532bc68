"""An off-policy learner draws its indices from the whole capacity of the replay ring instead of the filled part. The slots that no transition was written to
hold what the allocator left there (here NaN, as a debug run fills it).
After https://github.com/nnaisense/MAX/issues/1 (NaN in sampled next states).
True cause: memory that was never written is sampled."""
import torch
import torch.nn.functional as F
from torch import nn


class ReplayRing:
    def __init__(self, capacity, obs_dim):
        torch.use_deterministic_algorithms(True)        # fills torch.empty with NaN, as debug runs do
        self.obs = torch.empty(capacity, obs_dim)
        self.next_obs = torch.empty(capacity, obs_dim)
        torch.use_deterministic_algorithms(False)
        self.reward = torch.zeros(capacity)
        self.capacity, self.size = capacity, 0

    def add(self, obs, reward, next_obs):
        i = self.size % self.capacity
        self.obs[i], self.reward[i], self.next_obs[i] = obs, reward, next_obs
        self.size += 1

    def sample(self, indices):
        return self.obs[indices], self.reward[indices], self.next_obs[indices]


class TwinCritic(nn.Module):
    def __init__(self, obs_dim):
        super().__init__()
        self.q1 = nn.Sequential(nn.Linear(obs_dim, 24), nn.ReLU(), nn.Linear(24, 1))
        self.q2 = nn.Sequential(nn.Linear(obs_dim, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, obs):
        return self.q1(obs).squeeze(-1), self.q2(obs).squeeze(-1)


def build():
    torch.manual_seed(0)
    ring, critic = ReplayRing(64, 5), TwinCritic(5)
    opt = torch.optim.Adam(critic.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(2)
    for _ in range(40):
        ring.add(torch.randn(5, generator=g), torch.randn((), generator=g), torch.randn(5, generator=g))
    draws = [[1, 7, 30, 22], [39, 0, 12, 5], [18, 18, 33, 9], [25, 3, 51, 14], [2, 4, 6, 8]]

    def loss_fn(model, indices):
        obs, reward, next_obs = ring.sample(torch.tensor(indices))
        with torch.no_grad():
            target = reward + 0.99 * torch.min(*model(next_obs))
        a, b = model(obs)
        return F.mse_loss(a, target) + F.mse_loss(b, target)

    return dict(model=critic, optimizer=opt, batches=draws, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", also=("bad_input_data",), module="loss", also_module=("q1.0", "q2.0"), phase="forward",
                           also_phase=("state", "data"), op="aten.empty", first_bad_step=3, sample=2,
                           why="slot 51 of the ring was never written: only 40 transitions were stored"))
