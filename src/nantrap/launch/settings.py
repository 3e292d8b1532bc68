"""What `nantrap run` was asked to do: the command line, then `NANTRAP_*`, then `[tool.nantrap.run]`, then defaults."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nantrap.errors import FormatError, UsageError, path_argument
from nantrap.faults import parse_faults
from nantrap.record.alerts import Alerts, alerts_from_text
from nantrap.record.bad_samples import BadSamples
from nantrap.record.exporters import check_exporters

if TYPE_CHECKING:
    from nantrap.guard.policy import Policy

POLICIES = ("skip", "strict", "observe")
DIAGNOSES = ("full", "locate", "off")
BUNDLES = ("full", "light", "off")
STATE_CHECKS = ("off", "epoch")
BATCH_RANGES = ("off", "warn", "skip")
RESUME_RATES = ("restored", "configured")
FAILS_ON = ("evaluation", "inference")
_CHOICES = {
    "policy_name": POLICIES,
    "diagnose": DIAGNOSES,
    "bundle": BUNDLES,
    "check_state": STATE_CHECKS,
    "batch_range": BATCH_RANGES,
    "resume_lr": RESUME_RATES,
}
_OF_A_GUARD = (
    "policy_name", "max_skips", "rollback", "clip", "save_every", "diagnose", "bundle", "bundle_data", "check_state",
    "batch_range", "headroom", "watch", "export", "alert", "bad_samples",
)  # fmt: skip
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The options of a run.

    Attributes:
        run_dir: where the journal and the incidents go; empty for a new folder below `runs/`.
        policy_name: `skip` a bad step, end the run at the first one (`strict`), or only report (`observe`).
        max_skips: number of bad steps in a row that are skipped.
        rollback: after that, roll back to a state kept in memory with half the learning rate, instead of stopping.
        clip: clip the gradients of each step to this total norm; 0 leaves them alone.
        save_every: save a checkpoint every this many steps, into `checkpoints` of the run's folder; 0 for never.
        resume_lr: which learning rate counts when a script restores one that differs from the one it configures: the
            `restored` one, which is only reported, or the `configured` one, which is put in force.
        diagnose: how far a bad step is diagnosed.
        bundle: what an incident leaves on disk.
        bundle_data: also the batch of the failed step, so that the step can be run again; `bundle` is `full` then.
        check_state: check the whole state before each `epoch` of the data loader, and print the result; or `off`.
        batch_range: `warn` of inputs far outside the range of those before, or `skip` their steps; or `off`.
        headroom: every this many steps, measure how far the output of each module is from the largest number of its
            dtype, and warn before it overflows; 0 for never.
        watch: parameters and buffers to follow, with commas between them: `*.alpha<1`, `scale>0.01`, `bias`.
        exit_by_kind: a run that is stopped ends with an exit code that says why, instead of 3.
        quiet: print only the summary of a failed run.
        verbose: print the details of each diagnostic as well.
        json: the summary as JSON, on stdout.
        inject: faults to inject on purpose, `grad:0.01,seed=1`; empty for none.
        export: exporters, with commas between them.
        alert: alerts, one per line: `command:...`, `slack:VARIABLE`, `webhook:VARIABLE`.
        bad_samples: a list of bad samples, whose samples are named in incidents, and to which samples are added.
        fail_on: what makes the exit code 1 where the script's is 0: `evaluation`, `inference`, or both with a comma.
        name: of the script, for the folder.
        process: the number of this process among those that the script started.
        forked: the id of this process, if the script forked it.
        own_policy: a policy that is given as an object, by an adapter; the options above are then ignored.
    """

    run_dir: str = ""
    policy_name: str = "skip"
    max_skips: int = 5
    rollback: bool = False
    clip: float = 0.0
    save_every: int = 0
    resume_lr: str = "restored"
    diagnose: str = "full"
    bundle: str = "light"
    bundle_data: bool = False
    check_state: str = "off"
    batch_range: str = "off"
    headroom: int = 0
    watch: str = ""
    exit_by_kind: bool = False
    quiet: bool = False
    verbose: bool = False
    json: bool = False
    inject: str = ""
    export: str = ""
    alert: str = ""
    bad_samples: str = ""
    fail_on: str = ""
    name: str = "run"
    process: int = 0
    forked: int = 0
    own_policy: Policy | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                option = "policy" if name == "policy_name" else name
                raise UsageError(f"{option} is {getattr(self, name)!r}: choose {', '.join(choices)}")
        if self.inject:
            parse_faults(self.inject)  # a wrong value is refused before the script runs
        self.watches()
        if self.bad_samples and os.path.exists(self.bad_samples):
            BadSamples.load(self.bad_samples)  # so is a file that is not a list
        check_exporters(self.exporters)
        if wrong := {each.strip() for each in self.fail_on.split(",") if each.strip()} - set(FAILS_ON):
            raise UsageError(f"fail_on is {self.fail_on!r}: {min(wrong)!r} is none of {', '.join(FAILS_ON)}")
        if self.max_skips < 0:
            raise UsageError(f"max_skips is {self.max_skips}: expected 0 or more")
        if not (self.clip >= 0.0 and math.isfinite(self.clip)):
            raise UsageError(f"clip is {self.clip}: expected a positive number, the largest gradient norm; 0 for none")
        if self.save_every < 0:
            raise UsageError(f"save_every is {self.save_every}: expected a number of steps, or 0 for never")
        if self.headroom < 0:
            raise UsageError(f"headroom is {self.headroom}: expected a number of steps, or 0 for never")

    @property
    def strict(self) -> bool:
        """Whether the first bad step ends the run."""
        return self.policy().on_incident == "raise"

    @property
    def observes(self) -> bool:
        """Whether nothing is prevented."""
        return self.policy().on_incident == "observe"

    def options_of_a_guard(self) -> list[str]:
        """The options that differ from their defaults and that a `Guard` of the script does not see, as written."""
        found = []
        for name in _OF_A_GUARD:
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != default:
                option = "--" + ("policy" if name == "policy_name" else name.replace("_", "-"))
                found.append(option if value is True else f"{option} {value}")
        return found

    @property
    def exporters(self) -> tuple[str, ...]:
        """The names of the exporters."""
        return tuple(name.strip() for name in self.export.split(",") if name.strip())

    def watches(self) -> dict[str, tuple[float | None, float | None]]:
        """The watched names, as shell patterns, with the least and the largest value that is expected."""
        found: dict[str, tuple[float | None, float | None]] = {}
        for text in (part.strip() for part in self.watch.replace("\n", ",").split(",")):
            if not text:
                continue
            sign = "<" if "<" in text else ">"
            pattern, _, limit = text.partition(sign)
            try:
                value = float(limit) if sign in text else None
            except ValueError:
                value = math.nan
            if not pattern.strip() or (value is not None and not math.isfinite(value)):
                raise UsageError(f"watch is {text!r}: expected a name, NAME<LARGEST or NAME>LEAST, e.g. *.alpha<1")
            found[pattern.strip()] = (None, value) if sign == "<" else (value, None)
        return found

    def alerts(self) -> Alerts | None:
        """The alerts to send, if any. Addresses come from the environment."""
        specs = [line.strip() for line in self.alert.splitlines() if line.strip()]
        return alerts_from_text(specs, environment=os.environ) if specs else None

    def policy(self) -> Policy:
        """The guard's policy."""
        from nantrap.guard.policy import BatchChecks, Bundle, Policy, Rollback, Sampling

        if self.own_policy is not None:
            return self.own_policy
        chosen: Any = self  # its words were compared with the same choices
        return Policy(
            on_incident=chosen.policy_name if self.policy_name != "strict" else "raise",
            max_consecutive_skips=self.max_skips,
            then="rollback" if self.rollback else "stop",
            rollback=Rollback(rng="continue"),
            diagnose=chosen.diagnose,
            bundle=Bundle(kind="full", data=True) if self.bundle_data else chosen.bundle,
            batches=BatchChecks(unusual=chosen.batch_range),
            sampling=Sampling(headroom_every=self.headroom),
        )

    def choose_run_dir(self) -> Path:
        """The folder of the run, the same on all ranks; a new one unless it was named."""
        dist = sys.modules.get("torch.distributed")
        together = dist is not None and dist.is_available() and dist.is_initialized()
        # absolute: a script may change its folder
        new = Path.cwd() / "runs" / f"{self.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        chosen = [self.run_dir or str(_free(new))]
        if together and not self.run_dir:
            from nantrap.guard.ranks.ranks import common_choice

            # without a collective: a rank may be the only one that trains
            chosen = [common_choice("run_dir", chosen[0])]
        process = self.process or int(os.environ.get("RANK") or 0)
        if process and not together:  # processes that are no ranks, or do not know it, would write the same files
            return Path(chosen[0], f"process-{process + 1}")
        if self.forked and not together:
            return Path(chosen[0], f"process-{self.forked}")
        return Path(chosen[0])


def read_settings(given: Mapping[str, Any], *, environment: Mapping[str, str], folder: Path) -> RunSettings:
    """The settings of a run.

    Args:
        given: the options of the command line.
        environment: of the process; `NANTRAP_RUN_DIR`, `NANTRAP_POLICY`, ...
        folder: where `pyproject.toml` is looked for, and in the folders above.
    """
    values = {**_from_project(folder), **_from_environment(environment), **given}
    if values.get("run_dir"):
        name = path_argument(values["run_dir"], "--run-dir", "the path of a folder, such as 'runs/exp1'")
        values["run_dir"] = str(folder / name)  # fixed now: a script may change its folder
    if values.get("bad_samples"):
        values["bad_samples"] = str(folder / values["bad_samples"])
    return replace(RunSettings(), **values)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for name in _options():
        variable = f"NANTRAP_{name.upper()}"
        if environment.get(variable):
            found[_field(name)] = _typed(name, environment[variable], where=variable)
    return found


def _from_project(folder: Path) -> dict[str, Any]:
    """The settings of `[tool.nantrap.run]` in the nearest `pyproject.toml` at or above a folder."""
    path = next(
        (each / "pyproject.toml" for each in (folder, *folder.parents) if (each / "pyproject.toml").is_file()), None
    )
    if path is None:
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:  # the standard library reads TOML from Python 3.11 on; tomli is the same code for Python 3.10
        import tomli as tomllib
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from None
    table: Any = document
    for name in ("tool", "nantrap", "run"):
        table = table.get(name, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise FormatError(f"{path}: tool.nantrap.run is {table!r}: expected a table")
    found = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in _options():
            raise FormatError(f"{path}: [tool.nantrap.run] has no setting {key!r}; there are {', '.join(_options())}")
        found[_field(name)] = _typed(name, value, where=f"{path}: {key}")
    return found


def as_environment(settings: RunSettings) -> dict[str, str]:
    """The settings as `read_settings` finds them in the environment of another process; defaults are left out."""
    found = {}
    for option in _options():
        value = getattr(settings, _field(option))
        if value != getattr(RunSettings(), _field(option)):
            found[f"NANTRAP_{option.upper()}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _options() -> list[str]:
    """The names people use: those of the command line."""
    names = [spec.name for spec in fields(RunSettings) if spec.name not in ("name", "process", "forked", "own_policy")]
    return ["policy" if name == "policy_name" else name for name in names]


def _field(option: str) -> str:
    return "policy_name" if option == "policy" else option


def _typed(option: str, value: Any, *, where: str) -> Any:
    """A setting as the type of its option; raises `FormatError` that names where it was written."""
    kind: type = type(getattr(RunSettings(), _field(option)))
    try:
        if kind is bool:
            return value if isinstance(value, bool) else _WORDS[str(value).lower()]
        if kind is int and isinstance(value, (int, str)) and not isinstance(value, bool):
            return int(value)
        if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
            return float(value)
        if kind is str and isinstance(value, str):
            return value
    except (KeyError, ValueError):
        pass
    raise FormatError(
        f"{where} is {value!r}: expected "
        f"{({bool: 'true or false', int: 'a number', float: 'a number', str: 'a text'})[kind]}"
    )


def _free(path: Path) -> Path:
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found
