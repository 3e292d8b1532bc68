"""Runs and incidents on disk for the tests of reports, written as a guarded run writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nantrap.incident import (
    Action,
    Cause,
    Evidence,
    Finding,
    Fix,
    Frame,
    Incident,
    Magnitudes,
    Probe,
    Source,
    TensorStats,
    Trial,
)

EVIL = "a\x1b]0;x\x07<script>alert(1)</script>\"' onload=x \u202e&amp;{{ 7 * 7 }}"

MASKED = Incident(
    step=7,
    phase="forward",
    module="blocks.0.attention",
    op="aten._softmax",
    source=Source("model.py", 39, "Attention.weights", "        return scores.softmax(dim=-1)", 15, 37),
    findings=(
        Finding(
            "activation",
            "aten._softmax",
            "forward",
            stats=TensorStats((16, 4, 18, 18), "float32", 20736, nan=1296, min=0.0, max=0.7, mean=0.05, absmax=0.7),
        ),
        Finding("loss", "loss", "forward", value=math.nan),
        *(
            Finding("gradient", f"layer.{i}.weight", "backward", stats=TensorStats((8, 8), "float32", 64, nan=64))
            for i in range(10)
        ),
    ),
    causes=(
        Cause(
            "softmax_fully_masked_row",
            proven=True,
            confidence=0.98,
            summary="softmax over a row in which every position is masked gave NaN, from sample 3",
            evidence=(
                Evidence("72 of 1,152 rows are -inf everywhere, and exactly those rows are NaN"),
                Evidence("with a masked softmax the step is finite", kind="trial", trial=1),
            ),
            fix=Fix(
                "give the row one valid key, or use nantrap.ops.masked_softmax(scores, mask)",
                diff="-        return scores.softmax(dim=-1)\n+        return nantrap.ops.masked_softmax(scores, mask)",
                verified=True,
                trial=1,
            ),
        ),
    ),
    refuted=(
        Cause(
            "lr_too_high", evidence=(Evidence("with a tenth of the learning rate it is still NaN", "trial", trial=2),)
        ),
    ),
    samples=(3,),
    trials=(
        Trial(1, "replaced:softmax", "masked_softmax in line 39", True, 0.2745, milliseconds=30.0, harness="step"),
        Trial(2, "rate", "a tenth of the learning rate", False, milliseconds=29.0, harness="steps"),
    ),
    controls=(
        Trial(0, "control:step", "nothing: the step as it was", False, math.nan, milliseconds=20.0, harness="step"),
        Trial(0, "control:steps", "nothing: the steps", False, note="fails as it did", harness="steps"),
    ),
    frames=(
        Frame("aten.addmm", "blocks.0.attention.qkv", "float32", 2.94, line=31),
        Frame("aten.div", "blocks.0.attention", "float32", 5.42, line=33),
        Frame("aten.add", "blocks.0.attention", "float32", None, nonfinite=1, line=33),
        Frame("aten._softmax", "blocks.0.attention", "float32", None, nonfinite=1, line=39, origin=True),
    ),
    path=(
        Frame("aten.bmm", "blocks.0.attention", "float32", None, nonfinite=1, line=40, share=0.0625),
        Frame("aten.clone", "blocks.0.attention", "float32", None, nonfinite=1, line=41, share=0.0625),
        Frame("aten.addmm", "head", "float32", None, nonfinite=1, line=52, share=0.5),
        Frame("aten.mean", "loss", "float32", None, nonfinite=1, line=60, share=1.0, left_out=7),
    ),
    probes=(Probe("scores", TensorStats((4,), "float32", 4, neginf=4), first_bad=True),),
    magnitudes=(
        Magnitudes("the result of aten._softmax in blocks.0.attention", "float16", "repeated", {"5": 0.5, "6": 5790.0}),
        Magnitudes("the output of blocks.0.attention", "float32", "sampled", {"4": 2.0**115.5, "6": 2.0**124.5}),
    ),
    loss=math.nan,
    grad_norm=math.nan,
    lr=(0.004,),
    exact=True,
)
"""One incident with everything in it."""

HOSTILE = Incident(
    step=3,
    module=EVIL,
    op=EVIL,
    node=EVIL,
    source=Source(EVIL, 3, EVIL, EVIL, 0, 4),
    findings=(Finding("term", EVIL, "forward", value=math.nan), Finding("batch", EVIL, "data", note=EVIL)),
    causes=(Cause(EVIL, summary=EVIL, evidence=(Evidence(EVIL),), fix=Fix(EVIL, diff=f"-{EVIL}\n+{EVIL}")),),
    refuted=(Cause(EVIL, evidence=(Evidence(EVIL),)),),
    samples=(1,),
    trials=(Trial(1, EVIL, EVIL, True, note=EVIL),),
    frames=(Frame(EVIL, EVIL, EVIL, 1.0), Frame(EVIL, EVIL, EVIL, 1.0, origin=True)),
    probes=(Probe(EVIL, TensorStats((1,), EVIL, 1, nan=1), watch={EVIL: 1.0}),),
    terms={EVIL: 1.0},
    headroom={"1": 2.0},
    path=(Frame(EVIL, EVIL, EVIL, None, nonfinite=1, share=0.5),),
    controls=(Trial(0, EVIL, EVIL, False, note=EVIL),),
    magnitudes=(
        Magnitudes(EVIL, "float32", EVIL, {"1": 1.0, EVIL: 2.0, "9" * 5000: 1.0, "2": math.nan}),
        Magnitudes(EVIL, EVIL, "sampled", {"1": 1.0}),
    ),
    notes=(EVIL,),
    bundle=EVIL,
    loss=math.nan,
)
"""Every name in it is an attack on a terminal and a page."""


def line(step: int, loss: float | str = 1.0, action: str = "apply", **more: Any) -> dict[str, Any]:
    """One line of a journal."""
    shown = "nan" if isinstance(loss, float) and math.isnan(loss) else loss
    return {"step": step, "loss": shown, "grad_norm": 0.5, "lr": [0.001], "action": action, "ms": 12.5, **more}


def skipped(
    step: int, cause: str | None = "softmax_fully_masked_row", action: str = "skip", **more: Any
) -> dict[str, Any]:
    """A step that was not applied."""
    where = {"phase": "forward", "module": "blocks.0.attention", "op": "aten._softmax", "cause": cause}
    return line(step, math.nan, action, incident=where, **more)


def write_run(
    folder: Path,
    lines: Sequence[Mapping[str, Any]],
    *,
    incidents: Sequence[Incident] = (),
    info: Mapping[str, Any] | None = None,
    rank: int = 0,
) -> Path:
    """A run as it lies on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in lines)
    (folder / f"journal-r{rank}.jsonl").write_text(text)
    if info is not None:
        (folder / "run.json").write_text(json.dumps({"schema": "nantrap.run/1", **info}))
    for incident in incidents:
        write_incident(folder / "incidents" / f"{incident.step:06d}-r{incident.rank}", incident)
    return folder


def write_incident(folder: Path, incident: Incident) -> Path:
    """The folder of an incident."""
    folder.mkdir(parents=True)
    (folder / "incident.json").write_text(json.dumps(incident.to_dict()))
    return folder


def usual_run(folder: Path, steps: int = 300) -> Path:
    """A run with skips of one cause, a rollback, terms, a scale, a watched value and evaluations."""
    lines: list[dict[str, Any]] = []
    for step in range(steps):
        more: dict[str, Any] = {
            "terms": {"pixel": 0.7, "kl": 0.0},
            "scale": 1024.0,
            "watch": {"blocks.0.alpha": step / steps},
        }
        if step in (7, 40, 41):
            lines.append(skipped(step, **more))
        elif step == 42:
            lines.append(skipped(step, "fp16_forward_overflow", "rollback", **more))
        else:
            lines.append(line(step, 2.0 / (1 + step / 30), **more))
        if step % 100 == 99:
            lines.append({"kind": "eval", "step": step, "metrics": {"loss": 3.0 / (step + 1), "accuracy": 0.5}})
    back = replace(MASKED, step=42, action=Action.ROLLBACK, causes=(Cause("fp16_forward_overflow"),))
    info = {"model": "Net", "max_grad_norm": 1.0, "policy": {"on_incident": "skip", "max_rollbacks": 3},
            "arguments": ["train.py", "--api-key", "s3cret", "--lr=0.1", "--hf-token=s3cret"]}  # fmt: skip
    return write_run(folder, lines, incidents=(MASKED, back), info=info)
