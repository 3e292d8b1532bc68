"""TRL as it is: GRPO, RLOO and DPO with a planted fault under `nantrap run`, and a healthy run bit for bit.

TRL is not among the development tools: `pip install trl` (it brings `datasets`) installs it where these tests run.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).parent / "scripts" / "trl_faults.py")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("NANTRAP_")}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
FAULTS = {
    "grpo nan_reward": ("first in rewards_per_func[2, 0], assigned at grpo_trainer.py:",),
    "grpo none_reward": ("first in rewards_per_func[2, 0], assigned at grpo_trainer.py:",),
    "grpo inf_reward": ("first in rewards_per_func[2, 0], assigned at grpo_trainer.py:",),
    "grpo minus_inf_logprob": ("error[NT000]", "armed: the next 100 steps are traced"),  # its holder was deleted
    "grpo normalised_by_zero": ("error[NT101]", "holds 8 NaN among 8 values"),
    "grpo temperature_0": ("error[NT101]", "next_token_scores[0, "),
    "grpo empty_mask": ("error[NT103]",),
    "grpo label_out_of_range": ("a label is out of range: 700 in sample 2",),
    "grpo reference_inf": ("error[NT603]", "made without a graph: the output of LlamaForCausalLM"),
    "rloo nan_reward": ("first in rewards_per_func[2, 0], assigned at rloo_trainer.py:",),
    "dpo reference_inf": ("error[NT603]", "made without a graph: the output of LlamaForCausalLM"),
    "dpo reference_nan": ("error[NT603]", "made without a graph: the output of LlamaForCausalLM"),
}
"""What is planted, and what is said of it. A reward that `nan_to_num` hides is no incident: it is noticed."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL: pip install trl"),
]


def run(folder: Path, method: str, fault: str, *, guarded: bool = True) -> subprocess.CompletedProcess[str]:
    guard = ["-m", "nantrap", "run", "--run-dir", str(folder / "run")] if guarded else []
    return subprocess.run(
        [sys.executable, *guard, SCRIPT, method, fault, str(folder)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.mark.parametrize("planted", FAULTS)
def test_a_planted_fault(tmp_path: Path, planted: str) -> None:
    said = run(tmp_path, *planted.split()).stderr
    for words in FAULTS[planted]:
        assert words in said, said[-4000:]
    assert "learning rate" not in said


@pytest.mark.parametrize("method", ["grpo", "rloo", "dpo", "grpo no_variance"])
def test_a_healthy_run(tmp_path: Path, method: str) -> None:
    """TRL adds 1e-4 to a standard deviation of 0: a group without variance is healthy there."""
    name, _, fault = method.partition(" ")
    guarded, plain = (run(tmp_path, name, fault or "none", guarded=each) for each in (True, False))
    assert plain.returncode == guarded.returncode == 0, guarded.stderr[-4000:]
    last = [done.stdout.splitlines()[-1] for done in (guarded, plain)]
    assert last[0] == last[1]
    assert last[0].startswith("end 5 ")
    assert "5 steps, 5 applied (100.0 %), 0 incidents" in guarded.stderr
