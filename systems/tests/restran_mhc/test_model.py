"""The model and its hyper-connections: formulas, start, shapes; the loss; that it learns; that it can be resumed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nantrap.checkpoints import CheckpointStore
from nantrap_systems import baselines, load_system
from nantrap_systems.restran_mhc.data import Batch
from nantrap_systems.restran_mhc.faults import WholeBlock, diagonal
from nantrap_systems.restran_mhc.loss import character_accuracy, edit_distance, evaluate, plate_loss, read
from nantrap_systems.restran_mhc.model import (
    Contrast,
    FrameAttention,
    HyperConnection,
    PlateReader,
    SpatialTransformer,
    mix,
)
from nantrap_systems.script import main
from nantrap_systems.training import guard_of, mean_of_last, train

SYSTEM = load_system("restran_mhc")
SMALL = {"channels": 16, "batch_size": 8}
SMALL_OPTIONS = [f"--set={name}={value}" for name, value in SMALL.items()]


@pytest.fixture(scope="module")
def batch() -> Batch:
    found: Batch = SYSTEM.run().window(0)[0]
    return found


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


# ---- hyper-connections


@pytest.mark.parametrize("n", [2, 4])
def test_matrices_at_the_start(n: int) -> None:
    connection = HyperConnection(8, n=n, sublayer=nn.Identity())
    h_pre, h_post, h_res = connection.matrices(torch.randn(3, n, 8, 4, 5))
    alphas = (connection.alpha_pre, connection.alpha_post, connection.alpha_res)
    assert [alpha.item() for alpha in alphas] == [pytest.approx(0.01)] * 3
    assert torch.allclose(h_pre, torch.full((3, n), 0.5), atol=0.02)
    assert torch.allclose(h_post, torch.ones(3, n), atol=0.02)
    assert torch.allclose(h_res, torch.full((3, n, n), 1 / n), atol=0.02)


def test_the_formulas() -> None:
    connection = HyperConnection(4, n=2, sublayer=nn.Conv2d(4, 4, 1), alpha=3.0, alpha_res=3.0)
    x = torch.randn(3, 2, 4, 5, 6)
    pooled = x.mean((-2, -1)).reshape(3, 8)
    h = connection.phi(pooled / (pooled.square().mean(-1, keepdim=True) + 1e-6).sqrt())  # the norm's weight is 1
    h_pre, h_post, h_res = connection.matrices(x)
    assert torch.allclose(h_pre, (3 * h[:, :2]).sigmoid(), atol=1e-5)
    assert torch.allclose(h_post, 2 * (3 * h[:, 2:4]).sigmoid(), atol=1e-5)
    assert torch.allclose(h_res.sum(-2), torch.ones(3, 2), atol=1e-5)
    assert torch.allclose(h_res.sum(-1), torch.ones(3, 2), atol=1e-2)
    done = connection.sublayer((h_pre[:, :, None, None, None] * x).sum(1))
    wanted = (h_res[:, :, :, None, None, None] * x[:, None]).sum(2) + h_post[:, :, None, None, None] * done[:, None]
    assert torch.allclose(connection(x), wanted, atol=1e-5)


def test_mixing_keeps_the_mean_and_the_diagonal_mixes_nothing() -> None:
    streams, even = torch.randn(2, 4, 3, 2, 2), torch.full((2, 4, 4), 0.25)
    assert torch.allclose(mix(even, streams).mean(1), streams.mean(1), atol=1e-6)
    assert torch.allclose(mix(even, streams)[:, 0], streams.mean(1), atol=1e-6)
    assert torch.allclose(diagonal(even, streams), streams / 4)
    alone = torch.zeros_like(streams)
    alone[:, 0] = streams[:, 0]
    assert diagonal(even, alone)[:, 1:].abs().max() == 0, "a stream reaches no other"
    assert mix(even, alone)[:, 1:].abs().min() > 0


@pytest.mark.parametrize(("n", "right", "claimed"), [(2, 2.0, 1.5), (4, 3.0, 2.25)])
def test_the_gain_of_a_block_that_keeps_its_skip(n: int, right: float, claimed: float) -> None:
    """1 + n/2 a block. The 1.5 and 2.25 that were reported are 1/n + n/2: the gain with the diagonal einsum."""
    x = torch.rand(2, 1, 8, 4, 4).expand(-1, n, -1, -1, -1)
    for mixing, gain in ((mix, right), (diagonal, claimed)):
        connection = HyperConnection(8, n=n, sublayer=nn.Identity(), alpha=0.0, alpha_res=0.0, mixing=mixing)
        assert torch.allclose(connection(x), gain * x, rtol=1e-4)
    whole = WholeBlock(8)
    nn.init.zeros_(whole.branch[-1].weight)  # type: ignore[arg-type]
    connection = HyperConnection(8, n=n, sublayer=whole, alpha=0.0, alpha_res=0.0)
    assert torch.allclose(connection(x), right * x, rtol=1e-4)
    connection = HyperConnection(8, n=n, sublayer=whole.branch, alpha=0.0, alpha_res=0.0)
    assert torch.allclose(connection(x), x, rtol=1e-4), "without a skip of its own a block keeps its input as it is"


def test_between_an_expansion_and_a_mean_one_block_does_not_feel_its_mixing() -> None:
    """H_res of the first block gets equal streams, that of the last one is averaged away: only those between learn."""
    x = torch.rand(2, 1, 8, 4, 4)
    blocks = [HyperConnection(8, n=2, sublayer=nn.Conv2d(8, 8, 1), alpha=1.0, alpha_res=1.0) for _ in range(3)]
    streams = x.expand(-1, 2, -1, -1, -1)
    for block in blocks:
        streams = block(streams)
    streams.mean(1).square().sum().backward()
    first, middle, last = (abs(block.alpha_res.grad.item()) for block in blocks if block.alpha_res.grad is not None)
    assert middle > 100 * max(first, last)


# ---- the rest of the model


def test_contrast_of_a_black_frame_is_zero() -> None:
    frames = torch.rand(3, 16, 72)
    frames[1] = 0.0
    out = Contrast()(frames)
    assert out[1].abs().max() == 0
    assert out[0].mean().item() == pytest.approx(0, abs=1e-5)
    assert out[0].std().item() == pytest.approx(1, abs=1e-4)


def test_the_spatial_transformer_is_the_identity_at_the_start() -> None:
    frames = torch.randn(2, 1, 16, 72)
    assert torch.allclose(SpatialTransformer()(frames), frames, atol=1e-4)


def test_missing_frames_reach_nothing() -> None:
    attention, x = FrameAttention(8), torch.randn(2, 3, 5, 8)
    there = torch.tensor([[True, False, True], [True, True, True]])
    spoilt = x.masked_fill(~there[..., None, None], 1e4)
    assert torch.allclose(attention(x, there), attention(spoilt, there))


@pytest.mark.parametrize(("stride", "columns"), [(4, 18), (8, 9)])
def test_shapes(batch: Batch, stride: int, columns: int) -> None:
    model = PlateReader(channels=16, frame_stride=stride)
    assert model(batch.frames, batch.there).shape == (16, columns, 37)


def test_five_probes_a_block_and_nine_watched_alphas(batch: Batch) -> None:
    run = SYSTEM.run(fault=SYSTEM.fault("ctc_short_input"), changes={"mhc_blocks": 1})
    with guard_of(run, quiet=True) as guard:
        incident = next(step.incident for step in train(run, steps=10, guard=guard) if step.incident is not None)
    points = ("pooled", "read_out", "sublayer", "write_in", "output")
    assert [probe.name for probe in incident.probes] == [f"mhc.0.{point}" for point in points]
    assert set(incident.probes[0].watch) == {"alpha_pre", "alpha_post", "alpha_res"}


# ---- loss and evaluation


def test_the_best_path_is_read_and_nan_gives_nothing() -> None:
    path = torch.tensor([0, 5, 5, 0, 5, 7, 7])
    log_probs = torch.nn.functional.one_hot(path, 37).float().log_softmax(-1)[:, None].repeat(1, 2, 1)
    log_probs[3, 1, 2] = math.nan
    assert read(log_probs) == [[5, 5, 7], []]
    assert character_accuracy(log_probs, torch.tensor([[5, 5, 7], [5, 5, 7]])) == 0.5
    assert character_accuracy(log_probs, torch.tensor([[1], [1]])) == 0.0


@pytest.mark.parametrize(("left", "right", "distance"), [("", "abc", 3), ("abc", "abc", 0), ("kitten", "sitting", 3)])
def test_edit_distance(left: str, right: str, distance: int) -> None:
    assert edit_distance(list(left), list(right)) == edit_distance(list(right), list(left)) == distance


def test_evaluation_leaves_the_random_stream_and_the_mode_alone() -> None:
    run = SYSTEM.run(changes=SMALL)
    before = torch.get_rng_state()
    assert run.evaluate() == run.evaluate()
    assert torch.equal(torch.get_rng_state(), before)
    assert run.model.training


def test_half_precision_gives_nearly_the_same_loss(batch: Batch) -> None:
    model = PlateReader(channels=16)
    loss = plate_loss(model, batch).item()
    assert plate_loss(model, batch, dtype=torch.float16).item() == pytest.approx(loss, rel=0.01)
    assert evaluate(model, batch, dtype=torch.bfloat16).loss == pytest.approx(evaluate(model, batch).loss, rel=0.05)


# ---- training


def test_it_learns() -> None:
    """In 50 steps the loss falls from 7 to about 1, and 60 to 90 % of the characters are read.

    Always the same plate, with the most frequent character at every place, reads 10 %.
    """
    run = SYSTEM.run()
    before = run.evaluate()
    losses = [step.loss for step in train(run, steps=50)]
    after = run.evaluate()
    assert losses[0] == pytest.approx(7.2, abs=0.5)
    assert mean_of_last(losses, 10) < 2
    assert before.quality < 0.05
    assert after.quality > 2 * max(baselines.restran_mhc(run).values()) + 0.1
    assert all(abs(value.item()) < 0.3 for name, value in run.model.named_parameters() if "alpha" in name)


def test_guarded_and_plain_are_bit_identical() -> None:
    plain, guarded = SYSTEM.run(changes=SMALL), SYSTEM.run(changes=SMALL)
    losses = [step.loss for step in train(plain, steps=5)]
    with guard_of(guarded, quiet=True) as guard:
        steps = list(train(guarded, steps=5, guard=guard))
    assert [step.loss for step in steps] == losses
    assert torch.equal(parameters(plain.model), parameters(guarded.model))


def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def script(folder: str, *options: str) -> None:
        planned = [*SMALL_OPTIONS, "--set=total_steps=5"]  # the cycle of both, as of a run that was broken off
        assert main(SYSTEM, ["--run-dir", str(tmp_path / folder), *planned, *options]) == 0

    script("whole", "--steps=5")
    script("parts", "--steps=2")
    script("parts", "--steps=3", "--resume=last_good")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("evaluation after 5 steps")]
    assert len(lines) == 2
    assert lines[0] == lines[1]
    models = []
    for folder in ("whole", "parts"):
        run = SYSTEM.run(changes=SMALL)
        CheckpointStore(tmp_path / folder / "checkpoints").load(model=run.model)
        models.append(parameters(run.model))
    assert torch.equal(*models)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("frame_stride=6", "choose 4 or 8"),
        ("width=70", "not a multiple"),
        ("mixed_precision=fp8", "mixed_precision is 'fp8': choose no, bf16, fp16"),
        ("augmentation_level=7", "choose 0 to 2"),
    ],
)
def test_wrong_use_is_exit_code_2(option: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SYSTEM, [f"--set={option}"]) == 2
    assert words in capsys.readouterr().err
