"""`nantrap run` as people use it, in separate processes, against plain `python`.

Most cases go through a process that has imported torch already and forks (`scripts/server.py`); those in which the
start itself matters are started from nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from nantrap.cli import main
from nantrap.launch.settings import RunSettings, read_settings
from nantrap.record import open_run

HERE = Path(__file__).parent / "scripts"
TRAIN = str(HERE / "train.py")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("NANTRAP_", "COV"))}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONHASHSEED": "0"}
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="fork and signals")


@dataclass
class Ended:
    """A process that has ended."""

    code: int
    out: str
    err: str
    folder: Path = field(repr=False)

    @property
    def facts(self) -> dict[str, Any]:
        """The last line of stdout, which is JSON."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found

    @property
    def summary(self) -> list[str]:
        """What nantrap said at the end."""
        lines = self.err.splitlines()
        last = max((i for i, line in enumerate(lines) if " steps, " in line), default=0)
        return [line for line in lines[last:] if line.startswith("nantrap: ")]


class Shell:
    """A folder to run things in."""

    def __init__(self, folder: Path, server: subprocess.Popen[str]) -> None:
        self.folder = folder
        self._server = server

    def write(self, name: str, source: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source).lstrip("\n"), encoding="utf-8")
        return name

    def nantrap(self, *arguments: str, command: str = "run", **environment: str) -> Ended:
        """`nantrap run ...`, in a process that had torch before it was born."""
        out, err = self.folder / "stdout", self.folder / "stderr"
        request = {
            "arguments": [command, *arguments],
            "folder": str(self.folder),
            "environment": environment,
            "stdout": str(out),
            "stderr": str(err),
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        return Ended(code, out.read_bytes().decode(), err.read_bytes().decode(), self.folder)

    def python(self, *arguments: str, **environment: str) -> Ended:
        """A fresh `python ...`."""
        ended = subprocess.run(
            ["nice", sys.executable, *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=ENVIRONMENT | environment,
            timeout=120,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr, self.folder)

    def plain(self, *arguments: str) -> Ended:
        """What `python ...` prints and leaves, in a process that had torch before it was born."""
        return self.nantrap(*arguments, command="plain")

    def here(self, *arguments: str, **environment: str) -> Ended:
        """`nantrap run ...` in this process: for what ends before anything is run."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.chdir(self.folder)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr("nantrap.launch.runner.run_program", lambda *_: pytest.fail("it was run"))
            code = main(["run", *arguments])
        return Ended(code, out.getvalue(), err.getvalue(), self.folder)

    def incidents(self, run_dir: str = "run") -> list[dict[str, Any]]:
        files = sorted((self.folder / run_dir).glob("**/incidents/*/incident.json"))
        return [json.loads(path.read_text()) for path in files]


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        ["nice", sys.executable, str(HERE / "server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def shell(tmp_path: Path, server: subprocess.Popen[str]) -> Shell:
    return Shell(tmp_path, server)


# ---- what the script sees

SELF = """
import json, os, pickle, sys
import __main__
class Thing:
    pass
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "package": __package__, "path": sys.path[0],
    "spec": getattr(__spec__, "name", None), "loader": type(__loader__).__name__, "cached": __cached__,
    "is_main": vars(__main__) is globals(), "builtins": type(__builtins__).__name__, "cwd": os.getcwd(),
    "stack": sys._getframe().f_code.co_filename, "pickles": type(pickle.loads(pickle.dumps(Thing()))) is Thing,
    "module": Thing.__module__, "doc": __doc__, "hook": sys.excepthook is sys.__excepthook__,
}))
"""


@pytest.mark.parametrize(
    "target",
    ["here.py --lr 1e-4 -- -m x --json", "./here.py", "below/there.py a", "link.py", "folder -x", "app.pyz",
     "-m package.module --quiet", "-m package.inner", "{folder}/here.py"],
)  # fmt: skip
def test_a_program_sees_what_it_would_see_under_python(shell: Shell, target: str) -> None:
    for name in ("here.py", "below/there.py", "folder/__main__.py", "real/linked.py"):
        shell.write(name, '"""A program."""\n' + SELF)
    shell.write("package/__init__.py", "")
    shell.write("package/names.py", "x = 1")
    shell.write("package/module.py", "from .names import x\nfrom . import names\n" + SELF)
    shell.write("package/inner/__init__.py", "")
    shell.write("package/inner/__main__.py", "from ..names import x\n" + SELF)
    (shell.folder / "link.py").symlink_to("real/linked.py")
    with zipfile.ZipFile(shell.folder / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", SELF)
    words = [word.format(folder=shell.folder) for word in target.split()]
    plain = shell.python(*words)
    guarded = shell.nantrap("--quiet", *words)
    assert (plain.code, guarded.code) == (0, 0), guarded.err
    assert guarded.facts == plain.facts
    assert guarded.err == ""


def test_both_ways_to_start_it_are_the_same(shell: Shell) -> None:
    """`python -m nantrap` and the console script put different things first in `sys.path`."""
    shell.write("here.py", SELF)
    plain = shell.python("here.py", "a")
    module = shell.nantrap("here.py", "a")
    console = shell.python(str(Path(sys.executable).with_name("nantrap")), "run", "here.py", "a")
    assert module.facts == console.facts == plain.facts
    assert module.err == console.err == "nantrap: no optimizer made a step, so nothing was guarded\n"
    assert not (shell.folder / "runs").exists()


# ---- how it ends

ENDS = {
    "returns": ("print('done')", 0),
    "exits": ("import sys; print('bye'); sys.exit(5)", 5),
    "exits_with_nothing": ("import sys; sys.exit()", 0),
    "exits_with_words": ("import sys; sys.exit('no data here')", 1),
    "raises": ("def f():\n    1 / 0\nf()", 1),
    "raises_while_handling": ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['x']", 1),
    "raises_from": ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('no') from e", 1),
    "cannot_be_compiled": ("x = (1,\nprint(x", 1),
    "cannot_import": ("import not_there_at_all", 1),
    "has_a_hook": ("import sys\nsys.excepthook = lambda k, e, t: print(k.__name__, t.tb_lineno, t.tb_next)\n1 / 0", 1),
    "has_atexit": ("import atexit\natexit.register(print, 'last words')\nprint('first')\nraise SystemExit(4)", 4),
    "has_a_thread": (
        """
        import threading
        go = threading.Event()
        def work():
            go.wait()
            print('the thread is done')
        threading.Thread(target=work).start()
        print('main is done')
        go.set()
        """,
        0,
    ),
    "has_an_executor": (
        """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(1)
        print(pool.submit(lambda: 3).result())
        """,
        0,
    ),
    "closes_stdout": ("import sys\nprint('x')\nsys.stdout.close()\nsys.stdout = None", 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_program_ends_as_it_would_under_python(shell: Shell, name: str) -> None:
    source, code = ENDS[name]
    shell.write("program.py", source)
    plain = shell.python("program.py")
    guarded = shell.nantrap("--quiet", "program.py")
    assert plain.code == guarded.code == code
    assert guarded.out == plain.out
    assert guarded.err == plain.err


def test_an_error_in_a_package_is_shown_from_there(shell: Shell) -> None:
    shell.write("broken/__init__.py", "raise RuntimeError('not today')")
    shell.write("broken/train.py", "")
    guarded = shell.nantrap("-m", "broken.train")
    assert guarded.code == 1
    assert "RuntimeError: not today" in guarded.err
    assert "nantrap/" not in guarded.err


def test_an_error_below_a_wrapper_shows_the_script_and_torch_alone(shell: Shell) -> None:
    shell.write(
        "program.py",
        """
        import torch
        class Odd(torch.optim.SGD):
            def step(self, closure=None):
                raise KeyError("odd")
        model = torch.nn.Linear(2, 1)
        optimizer = Odd(model.parameters(), lr=0.1)
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        try:
            loss.backward()
        finally:
            optimizer.step()
        """,
    )
    guarded = shell.nantrap("program.py")
    assert guarded.code == 1
    shown = guarded.err.partition("nantrap: ")[0]
    assert "Trying to backward through the graph a second time" in shown
    assert "KeyError: 'odd'" in shown
    assert "src/nantrap" not in shown
    first = next(line for line in shown.splitlines() if line.startswith("  File "))
    assert first == f'  File "{shell.folder}/program.py", line 10, in <module>'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "error: missing.py: no such script"),
        (["./missing"], "error: ./missing: no such script"),
        (["json"], "error: json: no such script; a module is run by `nantrap run -m json`"),
        (["empty"], "error: empty: no __main__.py in it"),
        (["-m", "not_there"], "error: -m not_there: No module named not_there"),
        (["-m", "json.not_there"], "error: -m json.not_there: No module named json.not_there"),
        (["--max-skips", "-1", "here.py"], "error: max_skips is -1: expected 0 or more"),
        (
            ["--export", "tensorbord", "here.py"],
            "error: export='tensorbord': choose from tensorboard, wandb, mlflow, trackio",
        ),
        (
            ["--alert", "slack:NOWHERE", "here.py"],
            "error: --alert slack:NOWHERE: the environment variable NOWHERE is not set",
        ),
    ],
)
def test_wrong_use_is_said_in_one_line(shell: Shell, arguments: list[str], message: str) -> None:
    (shell.folder / "empty").mkdir()
    shell.write("here.py", "print('run')")
    ended = shell.nantrap(*arguments) if {"-m", "empty"} & {*arguments} else shell.here(*arguments)
    assert (ended.code, ended.out, ended.err) == (2, "", message + "\n")


def test_values_and_incidents_are_exported_and_an_alert_is_sent(shell: Shell) -> None:
    shell.write("note.py", "import sys; open('alert.json', 'a').write(sys.stdin.read() + chr(10))")
    command = f"command:{shlex.join([sys.executable, f'{shell.folder}/note.py'])}"
    options = ("--run-dir", "run", "--export", "tensorboard", "--alert", command)
    assert shell.nantrap(*options, TRAIN, "--out", "out.pt", "--bad", "5").code == 0
    run = open_run(shell.folder / "run" / "tensorboard")
    assert run.main["loss"].step.tolist() == open_run(shell.folder / "run").main["loss"].step.tolist()
    alerts = [json.loads(line) for line in (shell.folder / "alert.json").read_text().splitlines()]
    assert [alert["event"] for alert in alerts] == ["incident"]


def test_ctrl_c_ends_with_130_and_a_summary(shell: Shell) -> None:
    shell.write(
        "program.py",
        """
        import signal, torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        def wait():
            print("ready", flush=True)
            signal.pause()
        wait()
        """,
    )
    with subprocess.Popen(
        ["nice", sys.executable, "-m", "nantrap", "run", "--run-dir", "run", "program.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=shell.folder,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    lines = err.splitlines()
    assert lines[:3] == [
        "Traceback (most recent call last):",
        f'  File "{shell.folder}/program.py", line 11, in <module>',
        "    wait()",
    ]
    assert lines[-3:] == [
        "KeyboardInterrupt",
        "nantrap: 3 steps, 3 applied (100.0 %), 0 incidents",
        "nantrap: report: run/report.html",
    ]


def test_a_thread_that_trains_is_waited_for(shell: Shell) -> None:
    shell.write(
        "program.py",
        """
        import threading, torch
        go = threading.Event()
        def train():
            go.wait()
            model = torch.nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(4):
                optimizer.zero_grad()
                model(torch.full((1, 2), float("nan") if step == 2 else 1.0)).sum().backward()
                optimizer.step()
        threading.Thread(target=train).start()
        threading.Thread(target=go.wait, daemon=True).start()
        go.set()
        """,
    )
    assert shell.nantrap("program.py").summary[0] == "nantrap: 4 steps, 3 applied (75.0 %), 1 incident"


# ---- a healthy run


def test_a_healthy_run_is_the_plain_run(shell: Shell) -> None:
    """Words on stdout, weights, optimizer state and random numbers, bit for bit. The summary says so in two lines."""
    plain = shell.python(TRAIN, "--shuffle", "--out", "plain.pt")
    guarded = shell.python("-m", "nantrap", "run", "--run-dir", "run", TRAIN, "--shuffle", "--out", "guarded.pt")
    assert plain.code == guarded.code == 0
    assert guarded.out == plain.out
    assert plain.err == ""
    assert guarded.err == "nantrap: 16 steps, 16 applied (100.0 %), 0 incidents\nnantrap: report: run/report.html\n"
    left, right = (torch.load(shell.folder / name, weights_only=False, pickle_module=_Scripts) for name in FILES)
    for name, value in left["model"].items():
        assert torch.equal(value, right["model"][name]), name
    assert type(right["net"]).__name__ == "Net"
    for key, state in left["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, right["optimizer"]["state"][key][name]), (key, name)


FILES = ("plain.pt", "guarded.pt")


class _Scripts:
    """A pickle module for which `__main__` is the training script."""

    import pickle as _pickle

    class Unpickler(_pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module == "__main__":
                from launch.scripts import train

                return getattr(train, name)
            return super().find_class(module, name)


def test_without_a_folder_a_new_one_is_made_below_runs(shell: Shell) -> None:
    ended = shell.nantrap(TRAIN, "--epochs", "1")
    (folder,) = (shell.folder / "runs").iterdir()
    assert folder.name.startswith("train-2")
    assert ended.summary == [
        "nantrap: 8 steps, 8 applied (100.0 %), 0 incidents",
        f"nantrap: report: runs/{folder.name}/report.html",
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["journal-r0.jsonl", "report.html", "run.json"]


def test_a_script_that_changes_its_folder_keeps_its_run_together(shell: Shell) -> None:
    """Hydra does so at the start; others in the middle."""
    shell.write(
        "program.py",
        """
        import os, torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        os.mkdir("first"); os.mkdir("second")
        os.chdir("first")
        for step in range(4):
            optimizer.zero_grad()
            model(torch.full((1, 2), float("nan") if step == 2 else 1.0)).sum().backward()
            optimizer.step()
            os.chdir("../second")
        """,
    )
    ended = shell.nantrap("--run-dir", "run", "program.py")
    assert ended.code == 0
    assert [each["step"] for each in shell.incidents()] == [2]
    assert (shell.folder / "run" / "journal-r0.jsonl").exists()
    assert not list((shell.folder / "first").iterdir()) + list((shell.folder / "second").iterdir())
    assert ended.summary[-1].endswith("run/report.html")


# ---- a run that goes bad


def test_a_bad_batch_is_contained(shell: Shell) -> None:
    plain = shell.plain(TRAIN, "--bad", "10", "--shuffle")
    ended = shell.nantrap("--run-dir", "run", TRAIN, "--bad", "10", "--shuffle", "--out", "w.pt")
    assert not plain.facts["finite"]
    assert ended.code == 0
    assert ended.facts["finite"]
    assert ended.facts["drawn"] == plain.facts["drawn"]  # the random stream continued as it would have
    incidents = shell.incidents()
    assert [each["dataset_indices"] for each in incidents] == [[10], [10]]
    assert {each["causes"][0]["slug"] for each in incidents} == {"bad_input_data"}
    assert ended.facts["updates"] == 14  # held: the schedule counts applied steps
    assert ended.summary == [
        "nantrap: 16 steps, 14 applied (87.5 %), 2 incidents",
        "nantrap: 2 steps skipped, 0 rollbacks",
        "nantrap:   2 × bad_input_data",
        "nantrap: report: run/report.html",
    ]
    assert "error[NT101]: the input batch already contains NaN: x" in ended.err
    saved = torch.load(shell.folder / "w.pt", weights_only=False, pickle_module=_Scripts)
    assert all(bool(value.isfinite().all()) for value in saved["model"].values())


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--policy", "strict"], 3, "the policy stops at the first incident"),
        (["--max-skips", "1"], 3, "2 incidents in a row, 1 is allowed"),
        (["--max-skips", "1", "--quiet"], 3, "2 incidents in a row, 1 is allowed"),
        (["--max-skips", "1", "--rollback"], 0, "rollback 1 of 3; state of step 0, lr now"),
    ],
)
def test_how_far_a_run_may_go(shell: Shell, options: list[str], code: int, said: str) -> None:
    ended = shell.nantrap(*options, "--run-dir", "run", TRAIN, "--bad", "10", "17", "--epochs", "1", "--out", "w.pt")
    assert ended.code == code
    assert said in ended.err
    assert (shell.folder / "w.pt").exists() is (code == 0)
    assert ("nantrap: the guard stopped the run (exit code 3)" in ended.summary) is (code == 3)
    assert "Traceback" not in ended.err
    assert ("error[NT101]" in ended.err) is ("--quiet" not in options)
    assert ended.err.count(said) == 1


def test_an_observed_run_ends_poisoned_and_says_so(shell: Shell) -> None:
    plain = shell.plain(TRAIN, "--bad", "10")
    ended = shell.nantrap("--policy", "observe", "--quiet", "--run-dir", "run", TRAIN, "--bad", "10", "--out", "w.pt")
    assert ended.code == 1
    assert ended.out == plain.out  # exactly what the plain run does, NaN and all
    assert (shell.folder / "w.pt").exists()
    assert any(
        line.startswith("nantrap: the run ends with NON-FINITE weights: body.weight, body.bias, norm.weight and ")
        and line.endswith(" more; the run failed")
        for line in ended.summary
    )


def test_the_summary_as_json_is_the_last_line(shell: Shell) -> None:
    ended = shell.nantrap("--json", "--quiet", "--run-dir", "run", TRAIN, "--bad", "10", "--epochs", "1")
    assert ended.err == ""
    summary = ended.facts
    assert {name: summary[name] for name in ("schema", "exit_code", "steps", "applied", "skipped", "incidents")} == {
        "schema": "nantrap.summary/1",
        "exit_code": 0,
        "steps": 8,
        "applied": 7,
        "skipped": 1,
        "incidents": 1,
    }
    assert summary["causes"] == {"bad_input_data": 1}
    assert summary["reports"] == ["run/incidents/000001-r0"]
    assert summary["state_finite"] is True
    assert summary["stopped"] is False
    assert ended.out.splitlines()[0].startswith("epoch 0 loss ")


def test_a_script_that_swallows_every_exception_is_stopped_anyway(shell: Shell) -> None:
    shell.write(
        "program.py",
        """
        import torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        caught = 0
        for step in range(6):
            try:
                optimizer.zero_grad()
                model(torch.full((1, 2), float("nan") if step >= 2 else 1.0)).sum().backward()
                optimizer.step()
            except Exception:
                caught += 1
        print(caught, all(bool(p.isfinite().all()) for p in model.parameters()))
        """,
    )
    ended = shell.nantrap("--max-skips", "1", "program.py")
    assert (ended.code, ended.out) == (3, "3 True\n")
    assert "nantrap: the guard stopped the run (exit code 3)" in ended.summary


def test_diagnostics_are_on_separate_lines_next_to_a_progress_bar(shell: Shell) -> None:
    shell.write(
        "program.py",
        """
        import torch
        from tqdm import tqdm
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in tqdm(range(6), mininterval=0, miniters=1, ncols=60, desc="train"):
            optimizer.zero_grad()
            model(torch.full((1, 2), float("nan") if step == 3 else 1.0)).sum().backward()
            optimizer.step()
        """,
    )
    ended = shell.nantrap("program.py")
    assert ended.code == 0
    seen = [line.rpartition("\r")[2].rstrip() for line in ended.err.split("\n")]  # as a terminal shows it
    assert any(line.startswith("nantrap: step 3 skipped; ") for line in seen)
    ours = [line for line in seen if "nantrap" in line or "error[" in line or line.startswith("   =")]
    assert len(ours) > 6
    assert not any("train:" in line or "it/s" in line for line in ours)
    bars = [line for line in seen if line.startswith("train:")]
    assert len(bars) == 1  # drawn over and over in one place
    assert "6/6" in bars[0]


# ---- settings


def test_the_command_line_beats_the_environment_beats_the_project(shell: Shell) -> None:
    shell.write("pyproject.toml", '[tool.nantrap.run]\npolicy = "strict"\nrun-dir = "from-project"\nmax-skips = 0\n')
    shell.write("below/here.txt", "")
    arguments = [TRAIN, "--bad", "10", "--epochs", "1"]
    assert shell.nantrap(*arguments).code == 3
    assert (shell.folder / "from-project").is_dir()
    ended = shell.nantrap(*arguments, NANTRAP_POLICY="skip", NANTRAP_RUN_DIR="from-environment")
    assert ended.code == 3
    assert "no skip is allowed" in ended.err
    assert (shell.folder / "from-environment").is_dir()
    ended = shell.nantrap("--max-skips", "2", *arguments, NANTRAP_POLICY="skip", NANTRAP_QUIET="yes")
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("environment", "project", "message"),
    [
        ({"NANTRAP_POLICY": "hope"}, "", "policy is 'hope': choose skip, strict, observe"),
        ({"NANTRAP_MAX_SKIPS": "few"}, "", "NANTRAP_MAX_SKIPS is 'few': expected a number"),
        ({"NANTRAP_QUIET": "perhaps"}, "", "NANTRAP_QUIET is 'perhaps': expected true or false"),
        ({}, "polcy = 1", "pyproject.toml: [tool.nantrap.run] has no setting 'polcy'; there are run_dir, policy, "),
        ({}, "max-skips = 1.5", "pyproject.toml: max-skips is 1.5: expected a number"),
        ({}, "policy = [", "pyproject.toml: cannot be read: "),
        ({}, "rollback = 3", "pyproject.toml: rollback is 3: expected true or false"),
    ],
)
def test_a_setting_that_cannot_be_right_is_refused(
    shell: Shell, environment: dict[str, str], project: str, message: str
) -> None:
    shell.write("here.py", "print('run')")
    if project:
        shell.write("pyproject.toml", f"[tool.nantrap.run]\n{project}\n")
    ended = shell.here("here.py", **environment)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert message in ended.err
    assert ended.err.count("\n") == 1


def test_a_project_without_our_table_does_not_matter(shell: Shell) -> None:
    shell.write("here.py", "print('run')")
    for project in ("", "tool = 3", "[tool]\nnantrap = 3", "[project]\nname = 'x'"):
        shell.write("pyproject.toml", project)
        assert read_settings({}, environment={}, folder=shell.folder) == RunSettings(), project
    shell.write("pyproject.toml", "[tool.nantrap]\nrun = 'x'")
    ended = shell.here("--quiet", "here.py")
    assert ended.code == 2
    assert ended.err.endswith("pyproject.toml: tool.nantrap.run is 'x': expected a table\n")


# ---- other processes

WORKERS = """
import json, multiprocessing, os, pickle, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Points(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        x = torch.full((3,), float(index))
        if index == 13:
            x[1] = float("nan")
        return x, torch.ones(1)

class Tag:
    def __init__(self, text):
        self.text = text

def square(x):
    return x * x

def train(context):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context=context)
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(repr(loss.item()))
    return losses, all(bool(p.isfinite().all()) for p in model.parameters())

if __name__ == "__main__":
    facts = {context: train(context) for context in ("fork", "spawn")}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        facts["squares"] = pool.map(square, range(4))
    torch.save({"tag": Tag("kept")}, "tag.pt")
    facts["tag"] = torch.load("tag.pt", weights_only=False)["tag"].text
    facts["daemon"] = pickle.loads(pickle.dumps(Tag)) is Tag
    print(json.dumps(facts))
"""


@pytest.mark.slow
def test_worker_processes_behave(shell: Shell) -> None:
    """Workers of data loaders, forked and spawned, with the script's own classes; pools; pickles of its classes."""
    shell.write("program.py", WORKERS)
    ended = shell.nantrap("--run-dir", "run", "program.py")
    assert ended.code == 0, ended.err
    facts = ended.facts
    assert facts["fork"] == facts["spawn"]
    assert facts["fork"][0].count("nan") == 1
    assert facts["fork"][1] is True
    assert facts["squares"] == [0, 1, 4, 9]
    assert facts["tag"] == "kept"
    assert [each["dataset_indices"] for each in shell.incidents()] == [[13], [13]]
    assert ended.summary[0] == "nantrap: 12 steps, 10 applied (83.3 %), 2 incidents"
    assert (shell.folder / "run" / "optimizer-2" / "journal-r0.jsonl").exists()


# ---- scripts that guard themselves


def test_a_script_with_its_own_guard_is_left_alone(shell: Shell) -> None:
    arguments = ["-m", "nantrap_systems.pixeldlm.train", "--fault", "mask_product", "--steps", "6"]
    own = shell.nantrap("--run-dir", "run", *arguments, "--guard", "--run-dir", "own")
    assert own.code == 0, own.err
    assert not (shell.folder / "run").exists()
    assert own.err.endswith("nantrap: the script guards its optimizer itself, and nothing was added\n")
    assert "no effect" not in own.err
    contained = shell.nantrap("--run-dir", "run2", *arguments)
    assert contained.code == 0, contained.err
    assert shell.incidents("run2")


OWN_GUARD = """
import nantrap, torch
model = torch.nn.Linear(2, 1)
guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(2):
    guard.backward(model(torch.ones(2, 2)).sum())
    guard.step()
"""


def test_options_that_do_not_reach_a_guard_of_the_script_are_said(shell: Shell) -> None:
    shell.write("own.py", OWN_GUARD)
    ended = shell.nantrap("--export", "tensorboard", "--clip", "0.5", "own.py")
    assert ended.code == 0, ended.err
    assert ended.err.splitlines() == [
        (
            "nantrap: the script guards its SGD itself, so --clip 0.5, --export tensorboard have no effect on it; "
            "give the same to its Guard"
        ),
        "nantrap: the script guards its optimizer itself, and nothing was added",
    ]


FORKS = """
import multiprocessing, os, sys, torch

def train(steps, bad=-1):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 3), float("nan") if step == bad else 1.0)).sum().backward()
        optimizer.step()
    return model, optimizer

train(3)
child = multiprocessing.get_context("fork").Process(target=train, args=(4, 2))
child.start()
child.join()
copy = os.fork()
if copy == 0:
    sys.exit(0)
os.waitpid(copy, 0)
train(2)
print(child.pid)
"""


def test_a_forked_process_has_its_own_journal_and_summary(shell: Shell) -> None:
    shell.write("forks.py", FORKS)
    ended = shell.nantrap("--run-dir", "run", "--diagnose", "off", "forks.py")
    assert ended.code == 0, ended.err
    folders = {"run": ["apply"] * 3, "run/optimizer-2": ["apply"] * 2}
    folders[f"run/process-{ended.out.strip()}"] = ["apply", "apply", "skip", "apply"]
    found = {
        str(path.parent.relative_to(shell.folder)): [
            line["action"] for line in map(json.loads, path.read_text().splitlines()) if "action" in line
        ]
        for path in shell.folder.glob("run/**/journal-r0.jsonl")
    }
    assert found == folders
    assert [line for line in ended.err.splitlines() if " applied (" in line] == [
        "nantrap: 4 steps, 3 applied (75.0 %), 1 incident",
        "nantrap: 5 steps, 5 applied (100.0 %), 0 incidents",
    ]
    assert "nothing was guarded" not in ended.err


@pytest.mark.parametrize(
    ("how", "first", "summary"),
    [
        ("optimizer", "step 4 skipped; ", "5 steps, 4 applied (80.0 %), 1 incident"),
        ("looks", "step 0 applied; ", "no optimizer made a step, so nothing was guarded"),
        ("by-hand", "step 4 applied; ", "no optimizer made a step, so nothing was guarded"),
    ],
)
def test_plain_tensors_whose_loss_is_looked_at_by_a_helper_that_exits(
    shell: Shell, how: str, first: str, summary: str
) -> None:
    """Neither a module nor, in two of the cases, an optimizer; and two logarithms in one statement."""
    ended = shell.nantrap("--run-dir", "run", str(HERE / "plain.py"), how)
    assert ended.code == 0, ended.err
    assert ended.err.startswith(f"nantrap: {first}")
    assert "\nerror[NT201]: the logarithm of zero gave -Inf" in ended.err
    assert "plain.py:21 in <module>\n" in ended.err
    assert "21 |     cost = -(y * torch.log(hypothesis) + (1 - y) * torch.log(1 - hypothesis)).mean()" in ended.err
    assert f"nantrap: {summary}" in ended.err
    if how != "optimizer":
        assert "the script has no optimizer: this value is only reported" in ended.err
        assert ended.err.splitlines()[-2:] == [
            "nantrap: 1 value that the script used was not finite",
            f"nantrap: report: run/incidents/00000{first[5]}-r0",
        ]


def test_clip_and_save_every_on_the_command_line(shell: Shell) -> None:
    ended = shell.nantrap("--run-dir", "run", "--clip", "0.5", "--save-every", "2", TRAIN)
    assert ended.code == 0, ended.err
    saved = sorted(path.name for path in (shell.folder / "run" / "checkpoints").glob("*.safetensors"))
    assert saved
    assert f"nantrap: last good checkpoint: run/checkpoints/{saved[-1]} (step {int(saved[-1][5:11]):,})" in ended.err
    assert json.loads((shell.folder / "run" / "run.json").read_text())["max_grad_norm"] == 0.5


ASSERTS = """
import math, torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.full((2, 3), float("nan") if step == 2 else 1.0)).square().mean()
    assert math.isfinite(loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_loss_that_fails_an_assertion_is_one_incident(shell: Shell) -> None:
    shell.write("asserts.py", ASSERTS)
    ended = shell.nantrap("--run-dir", "run", "asserts.py")
    assert ended.code == 1
    assert "AssertionError" in ended.err
    assert ended.err.count("nantrap: step 2 skipped; ") == 1
    assert "the script ended itself at this loss" in ended.err
    assert "nantrap: 3 steps, 2 applied (66.7 %), 1 incident\n" in ended.err
