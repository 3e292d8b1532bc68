"""`nantrap run`: an unmodified script, guarded."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

_SAME_NAMES = (
    "clip", "save_every", "resume_lr", "diagnose", "bundle", "bundle_data", "check_state", "batch_range", "headroom",
    "exit_by_kind", "quiet", "verbose", "json", "inject", "bad_samples", "fail_on",
)  # fmt: skip


class RunCommand:
    """Run a training script under guard: nantrap run train.py --lr 1e-4, or nantrap run -m package.train.

    The script is run as Python would run it, unchanged. A step whose loss, gradients or buffers are not finite is
    skipped, its cause is diagnosed and shown, and the run continues. Options of nantrap come before the script;
    everything after it belongs to the script. They can also be given as NANTRAP_RUN_DIR, NANTRAP_POLICY, ... or in
    [tool.nantrap.run] of pyproject.toml. Exit code: the script's own; 3 if the guard stopped it; 1 if it ended with
    non-finite weights.
    """

    name = "run"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """The arguments of `nantrap run`; everything after the script belongs to the script."""
        from nantrap.launch.settings import BATCH_RANGES, BUNDLES, DIAGNOSES, POLICIES, RESUME_RATES, STATE_CHECKS
        from nantrap.record.exporters import NAMES as EXPORTERS

        parser.usage = "nantrap run [OPTIONS] (SCRIPT | -m MODULE) [ARGUMENTS ...]"
        add = parser.add_argument
        add("--run-dir", metavar="DIR", help="journal and incidents (default: a new folder below runs/)")
        add(
            "--policy",
            choices=POLICIES,
            help="skip a bad step, end the run at the first one, or only report (default: skip)",
        )
        add("--max-skips", type=int, metavar="N", help="skips in a row before stopping (default: 5)")
        add(
            "--rollback",
            action="store_true",
            default=None,
            help="after too many skips, roll back to a state in memory with half the learning rate",
        )
        add("--clip", type=float, metavar="NORM", help="clip the gradients of each step to this total norm")
        add(
            "--save-every",
            type=int,
            metavar="N",
            help="save a checkpoint every N steps, if it is finite, in checkpoints/ of the run's folder",
        )
        add(
            "--resume-lr",
            choices=RESUME_RATES,
            help="when the script restores another learning rate than it configures: which one counts "
            "(default: restored, with a message)",
        )
        add("--diagnose", choices=DIAGNOSES, help="how far a bad step is diagnosed (default: full)")
        add("--bundle", choices=BUNDLES, help="what an incident leaves on disk (default: light)")
        add(
            "--bundle-data",
            action="store_true",
            default=None,
            help="write what `nantrap replay` needs into the folder of an incident: weights, optimizer state, random "
            "streams, and the batch as the DataLoader gave it. Without this option no data is written",
        )
        add(
            "--check-state",
            choices=STATE_CHECKS,
            help="epoch: check parameters and optimizer state before each epoch, and print the result (default: off)",
        )
        add(
            "--batch-range",
            choices=BATCH_RANGES,
            help="warn of inputs far outside the range of the batches before, or skip their steps (default: off)",
        )
        add(
            "--headroom",
            type=int,
            metavar="N",
            help="every N steps, measure the output of every module, and warn before it overflows (default: off)",
        )
        add("--watch", action="append", metavar="NAME[<LIMIT]", help='follow parameters and buffers, e.g. "*.alpha<1"')
        add("--export", action="append", metavar="NAME", help=f"{', '.join(EXPORTERS)}: values and incidents, live")
        add(
            "--alert",
            action="append",
            metavar="SPEC",
            help="at an incident, rollback, stop or stall: command:COMMAND, slack:VARIABLE, webhook:VARIABLE "
            "(the environment variable that holds the address)",
        )
        add(
            "--exit-by-kind",
            action="store_true",
            default=None,
            help="for schedulers: a stopped run exits with 40 (the same will happen again), 41 (hardware suspected), "
            "42 (skips and rollbacks used up) or 43 (a rank was lost), instead of 3 or 1",
        )
        add("--quiet", action="store_true", default=None, help="print nothing, unless the run fails")
        add(
            "--verbose",
            action="store_true",
            default=None,
            help="print the details of each diagnostic as well: what else was found, the batch, how values grew",
        )
        add("--json", action="store_true", default=None, help="the summary as JSON, the last line on stdout")
        add(
            "--bad-samples",
            metavar="FILE",
            help="bad-samples.json: say which samples of an incident are on it, and add the guilty ones",
        )
        add("--inject", metavar="FAULTS", help='inject faults into the run, to test it, e.g. "grad:0.01,seed=1"')
        add(
            "--fail-on",
            metavar="evaluation,inference",
            help="exit code 1 if a bad value was made in an evaluation, or by a model that no optimizer trains",
        )
        add("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
        add("script", metavar="SCRIPT", help="the script, as for python")
        add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="arguments of the script")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the program under a guard, with settings from the command, the environment and pyproject.toml."""
        from nantrap.launch.script import ScriptProgram
        from nantrap.launch.settings import read_settings
        from nantrap.report import VERBOSE

        program = ScriptProgram(arguments.script, arguments.arguments, is_module=arguments.module)
        names = {"run_dir": "run_dir", "policy": "policy_name", "max_skips": "max_skips", "rollback": "rollback"}
        names |= {name: name for name in _SAME_NAMES}
        given = {
            field: getattr(arguments, name) for name, field in names.items() if getattr(arguments, name) is not None
        }
        given |= {"export": ",".join(arguments.export)} if arguments.export else {}
        given |= {"watch": ",".join(arguments.watch)} if arguments.watch else {}
        given |= {"alert": "\n".join(arguments.alert)} if arguments.alert else {}
        settings = read_settings({**given, "name": program.name}, environment=os.environ, folder=Path.cwd())
        if settings.verbose:
            os.environ[VERBOSE] = "1"
        settings.alerts()  # a missing address is reported now, and not after hours
        from nantrap.launch.runner import run_program

        return run_program(program, settings)
