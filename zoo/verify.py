"""Checks the zoo against itself, without nantrap: python -m zoo.verify [-v] [NAME ...]

A name is a family, a collection, a program or a script; by default all that may be read.

Every program runs in the plain loop (autocast(loss_fn), backward, optimizer.step). Checked are: the first step at which
the loss, a gradient, the gradient norm (where the program may clip by it), a parameter, optimizer state or a buffer is
non-finite; whether the loss was finite at that step; the poisoned state; and, in a second run whose bad step is traced
operation by operation, that the named operation of the named module makes non-finite values from finite ones in the
named phase. Where the truth states a `repair`, the program is changed by it and must stay finite. Controls must stay
finite to the end.
A whole script runs as it is. Checked are the first update with a non-finite loss, or gradient, weight or state of its
optimizer, how it ends, that the named line is one of its lines, and the repair.
A line for each program; exit 1 if any truth does not hold.
"""

import argparse
import contextlib
import io
import itertools
import os
import random
import re
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zoo.loading import CONTROLS, SCRIPTS, find, is_control, is_script, is_step, load
from zoo.results import RESULTS, save_parts
from zoo.running import ScriptRun

torch.set_num_threads(1)
KEYS = {"model", "optimizer", "batches", "loss_fn", "steps", "autocast_dtype", "truth"}
SILENT = ("aten.empty", "aten.new_empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty_strided")


def is_float(t):
    """Whether its values are looked at. The formats of one byte have no `isfinite`."""
    checked = torch.is_tensor(t) and (t.is_floating_point() or t.is_complex()) and t.layout == torch.strided
    return checked and t.element_size() > 1


def has_nan(t):
    return is_float(t) and bool(torch.isnan(t).any())


def has_bad(t):
    return is_float(t) and not bool(torch.isfinite(t).all())


def state_of(case):
    """Every tensor that outlives a step, by name."""
    model, names = case["model"], {}
    out = {f"param {n}": p.detach() for n, p in model.named_parameters()}
    out |= {f"buffer {n}": b for n, b in model.named_buffers()}
    names = {p: n for n, p in model.named_parameters()}
    for p, entries in case["optimizer"].state.items():
        out |= {f"optimizer {names.get(p, '?')}.{k}": v for k, v in entries.items() if torch.is_tensor(v)}
    return {n: t for n, t in out.items() if is_float(t)}


class Tracer(TorchDispatchMode):
    """Notes each operation that makes NaN from no NaN, or Inf from finite inputs: (phase, module, op, node)."""

    def __init__(self, model):
        super().__init__()
        self.origins, self.stack, self.made_in, self.phase = [], [], {}, "forward"
        for name, module in model.named_modules():
            if name:
                module.register_forward_pre_hook(lambda m, a, name=name: self.stack.append(name))
                module.register_forward_hook(lambda m, a, o: self.stack.pop() and None, always_call=True)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = tree_leaves((args, kwargs))
        nan_in = any(has_nan(t) or (isinstance(t, float) and t != t) for t in inputs)
        bad_in = any(has_bad(t) or (isinstance(t, float) and abs(t) == float("inf")) for t in inputs) or nan_in
        finite_before = [t for t in inputs if is_float(t) and not has_bad(t)]
        out = func(*args, **kwargs)
        node = torch._C._current_autograd_node()
        module = self.stack[-1] if self.stack else "loss"
        if node is not None and not self.stack:
            module = self.made_in.get(node._sequence_nr(), "loss")
        self.made_in[torch._C._autograd._get_sequence_nr() - 1] = module
        op = str(func.overloadpacket)
        outs = tree_leaves(out)
        written_bad = any(map(has_bad, finite_before))  # running statistics, and the like
        if op not in SILENT and (
            (any(map(has_nan, outs)) and not nan_in)
            or (any(map(has_bad, outs)) and not bad_in)
            or (written_bad and not bad_in)
        ):
            self.origins.append((self.phase, module, op, node.name() if node is not None else None))
        return out


def run(case, trace_step=None):
    """The plain loop, up to the first bad step. Returns (step, what is bad there, loss, gradients finite, tracer)."""
    model, optimizer, dtype = case["model"], case["optimizer"], case["autocast_dtype"]
    autocast = (lambda: torch.autocast("cpu", dtype=dtype)) if dtype else contextlib.nullcontext
    born_bad = {n: ~torch.isfinite(t) for n, t in state_of(case).items() if has_bad(t)}
    truth = case["truth"]
    declared = truth.get("phase") == "state" or truth.get("op") == "aten.empty"  # bad state is the fault itself
    takes_norm = truth.get("phase") == "grad_clip" or bool(optimizer._optimizer_step_pre_hooks)  # perhaps to clip by it
    batches, tracer = case["batches"], None
    stream = itertools.cycle(batches) if isinstance(batches, list) else iter(batches)
    for step, batch in zip(range(case["steps"]), stream, strict=False):
        if step == trace_step:
            tracer = Tracer(model)
        with tracer or contextlib.nullcontext():
            optimizer.zero_grad()
            with autocast():
                loss = case["loss_fn"](model, batch)
                loss = sum(loss.values()) if isinstance(loss, dict) else loss
            if tracer:
                tracer.phase = "backward"
            loss.backward()
            grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            if tracer:
                tracer.phase = "optimizer"
            norm = torch.nn.utils.get_total_norm(list(grads.values())) if takes_norm else torch.zeros(())
            optimizer.step()
        bad = [] if torch.isfinite(loss) else ["loss"]
        bad_grads = [f"grad {n}" for n, g in grads.items() if has_bad(g)]
        bad += bad_grads or ([] if torch.isfinite(norm) else ["norm"])
        for n, t in state_of(case).items():
            new = ~torch.isfinite(t)
            if n in born_bad and not declared and new.shape == born_bad[n].shape:
                new &= ~born_bad[n]
            if new.any():
                bad.append(n)
        if bad or step == trace_step:
            return step, bad, loss.item(), not bad_grads, tracer
    return None, [], loss.item(), True, tracer


def fresh(path):
    """The program, with every random stream at its start."""
    torch.manual_seed(0)
    random.seed(0)
    return load(path)


def run_repaired(path, old, new):
    """The plain loop over the program with one text of its code replaced: (first bad step, what is bad there)."""
    text = path.read_text(encoding="utf-8")
    *_, answer = re.finditer(r"truth\s*=\s*dict\(", text)  # it names the text of the repair once more
    story, code = text[: answer.start()].split('"""', 2)[1:]
    if code.count(old) != 1:
        return "none", [f"the text of the repair occurs {code.count(old)} times"]
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder, path.name)
        changed.write_text(f'"""{story}"""{code.replace(old, new)}{text[answer.start() :]}', encoding="utf-8")
        return run(fresh(changed))[:2]


def check(path, verbose=False):
    """Returns (what does not hold, a few words on what was seen)."""
    case = fresh(path)
    truth, wrong, seen = case["truth"], [], ""
    if KEYS - set(case):
        return [f"build() lacks {sorted(KEYS - set(case))}"], ""
    control = is_control(truth)
    if control != (path.parent.name == CONTROLS):
        wrong.append("healthy programs, and only those, are in controls/")
    step, bad, loss, grads_finite, _ = run(case)
    if step != truth["first_bad_step"]:
        wrong.append(f"first bad step {step}, not {truth['first_bad_step']} ({bad[:4]})")
    if control or step is None:
        return wrong, f"finite, last loss {loss:.3g}"
    seen = f"step {step} {bad[0]}{' ...' if bad[1:] else ''}"
    finite = loss == loss and abs(loss) != float("inf")
    if truth.get("loss_finite_at_first_bad_step", finite) != finite:
        wrong.append(f"loss at the bad step is {loss}")
    if truth.get("grads_finite", grads_finite) != grads_finite:
        wrong.append(f"gradients finite: {grads_finite}")
    if truth["phase"] == "grad_clip" and bad != ["norm"]:
        wrong.append(f"not only the norm is bad: {bad[:4]}")
    for name in truth.get("poisoned_state", []):
        if not any(name in b for b in bad):
            wrong.append(f"{name} is not poisoned")
    if "repair" in truth:
        later, still = run_repaired(path, *truth["repair"])
        if later is not None:
            wrong.append(f"repaired, it is non-finite at step {later} ({still[:4]})")
    if truth["phase"] in ("data", "state") or truth["op"] in ("aten.empty", "state") or truth.get("untraceable"):
        return wrong, seen
    origins = run(fresh(path), trace_step=step)[4].origins
    phase = {"grad_clip": "optimizer"}.get(truth["phase"], truth["phase"])
    module = "loss" if truth.get("where") == "loss_fn" or truth["module"] in ("", None) else truth["module"]
    ops, modules = {truth["op"], *truth.get("also_op", ())}, {module, *truth.get("also_module", ())}
    hits = [
        i
        for i, (p, m, op, _) in enumerate(origins)
        if p == phase and op in ops and (m in modules or phase == "optimizer")
    ]
    if not hits:
        wrong.append(f"no such origin; origins: {origins[:6]}")
    elif hits[0] and verbose:
        seen += f"; before it: {origins[: hits[0]]}"
    return wrong, seen


class WatchedScript(ScriptRun):
    """A script, and the updates made before its first non-finite loss, or gradient, weight or state of an optimizer."""

    def __init__(self, path, script=None):
        super().__init__(path)
        self.script = script or self.script
        self.bad = self.error = None

    def _look(self, *tensors):
        if self.bad is None and any(map(has_bad, tensors)):
            self.bad = self.updates

    def _updated(self, optimizer, args, kwargs):
        held = [t for group in optimizer.param_groups for p in group["params"] for t in (p, p.grad)]
        self._look(*held, *(t for entries in optimizer.state.values() for t in entries.values()))
        super()._updated(optimizer, args, kwargs)

    def ended_as(self):
        """Run in an empty folder: 0 or 1, as its process would end."""
        backward, here = torch.Tensor.backward, os.getcwd()

        def watched(loss, *args, **kwargs):
            self._look(loss)
            return backward(loss, *args, **kwargs)

        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            torch.Tensor.backward = watched
            os.chdir(folder)
            try:
                self.run()
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}".partition("\n")[0]
            finally:
                os.chdir(here)
                torch.Tensor.backward = backward
        return int(not self.is_whole())


def check_script(path):
    """The same for a whole script."""
    run, wrong = WatchedScript(path), []
    truth, code = run.truth(), run.script.read_text(encoding="utf-8")
    if (ended := run.ended_as()) != truth.get("exit", 0):
        wrong.append(f"it ends with {ended} ({run.error})")
    if run.bad is None and not (is_control(truth) or truth["first_bad_step"] is None or truth.get("skipped_by_script")):
        wrong.append("no update is bad")
    if run.bad is not None and (is_control(truth) or not is_step(truth, run.bad)):
        wrong.append(f"first bad update {run.bad}, not {truth['first_bad_step']}")
    if "line" in truth and truth["line"] not in code:
        wrong.append("no line of it is the named one")
    if "repair" in truth:
        old, new = truth["repair"]
        with tempfile.TemporaryDirectory() as folder:
            changed = Path(folder, "train.py")
            changed.write_text(code.replace(old, new), encoding="utf-8")
            repaired = WatchedScript(path, changed)
            if old not in code or repaired.ended_as() or repaired.bad is not None:
                wrong.append(f"repaired, its first bad update is {repaired.bad} ({repaired.error})")
    return wrong, "finite" if run.bad is None else f"update {run.bad}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-v", action="store_true")
    parser.add_argument("--save", action="store_true", help="write zoo/results/verify.json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    found = {}
    for path in find(*args.names) if args.names else (*find(), *find(SCRIPTS)):
        try:
            wrong, seen = check_script(path) if is_script(path) else check(path, args.v)
        except Exception as error:
            said = str(error).partition("\n")[0]  # PyTorch adds where each kernel is, with the folders of the machine
            wrong, seen = [f"{type(error).__name__}: {said}"], ""
            if args.v:
                traceback.print_exc()
        found[path.stem] = "; ".join(wrong)
        print(f"{'WRONG' if wrong else 'ok':5s} {path.stem:48s} {found[path.stem] or seen}", flush=True)
    failed = sum(map(bool, found.values()))
    print(f"{len(found) - failed} of {len(found)} hold")
    if args.save:
        command = " ".join(["python -m zoo.verify --save", *args.names])
        save_parts(RESULTS / "verify.json", {" ".join(args.names) or "programs": found}, command, packages=())
    return 1 if failed or not found else 0


if __name__ == "__main__":
    sys.exit(main())
