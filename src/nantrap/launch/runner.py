"""`nantrap run`: attach, run the program, print the summary. `%load_ext nantrap` does the same in a notebook."""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from nantrap.errors import NonFiniteError, RankLostError, StopKind
from nantrap.guard.exceptions import refused_in_words
from nantrap.guard.ranks.ranks import lost_rank_in_words
from nantrap.launch.attach import Attachment, attached
from nantrap.launch.processes import came_from_guard
from nantrap.launch.script import NoProgramError, ScriptProgram
from nantrap.launch.settings import RunSettings, read_settings
from nantrap.launch.summary import RunSummary, print_summary
from nantrap.locate.twoline.caller import ended_by
from nantrap.record.restarts import RunStop, last_stop, restart_count, tell_launcher
from nantrap.report import write_line
from nantrap.report.notebook import magic

INTERRUPTED = 130
STOPPED = 3
FAILED = 1
BY_KIND: Final[dict[StopKind, int]] = {"repeats": 40, "hardware": 41, "spent": 42}
"""With `--exit-by-kind`, the exit code of a stopped run."""
RANK_LOST = 43
_ENDED_ITSELF = "the script ended itself at this loss"


def run_program(program: ScriptProgram, settings: RunSettings) -> int:
    """Run a program under guard. Returns its own exit code, or 3 if the guard stopped it, or 1 if it ends with
    non-finite weights or skipped most of its steps."""
    before = set(threading.enumerate())
    if (stop := _stopped_twice(settings)) is not None:
        words = f"not started: the last two attempts stopped at the same incident ({stop.in_words()})"
        tell_launcher(words)
        write_line(f"nantrap: {words}. Change its cause, or unset the scheduler's restart count to try it all the same")
        return BY_KIND[stop.kind] if settings.exit_by_kind else STOPPED
    with attached(settings) as attachment:
        attachment.registry.module_calls.watch()  # a script that only evaluates has no optimizer
        code = _run(program.run, attachment)
        code = _run(lambda: _wait_for_threads(before), attachment) or code
        with contextlib.suppress(Exception):  # the script may have replaced or closed it
            sys.stdout.flush()
        attachment.registry.end()
        summary = RunSummary.of(attachment)
    if summary.stopped or summary.children_stopped:
        code = _code_of_stop(attachment)
    if code == 0 and (summary.failed or summary.fails_on(settings.fail_on)):
        code = FAILED
    if summary.optimizers or not attachment.is_forked:  # a copy of this process that trained nothing says nothing
        print_summary(summary, code, attachment.registry.settings)
    attachment.registry.let_go()
    return code


def _run(call: Callable[[], None], attachment: Attachment) -> int:
    """Run the program and give its exit code. An exception is shown as Python would, then explained."""
    try:
        call()
    except SystemExit as error:
        attachment.registry.asked.ended = _ENDED_ITSELF
        with ended_by(error):  # a loss that the script tested before it ended
            attachment.registry.end()
        return _exit_code(error)
    except NoProgramError:
        raise
    except KeyboardInterrupt as error:
        _show(error)
        attachment.registry.note_end(error)
        return INTERRUPTED
    except NonFiniteError as error:
        said = not attachment.settings.quiet and any(loop.stopped is error for loop in attachment.registry)
        # the first line was printed with the incident
        write_line(str(error).partition("\n")[2] if said else f"nantrap: {error}")
        tell_launcher(str(error))  # `record` of torch may have written the traceback of the script meanwhile
        return STOPPED
    except BaseException as error:
        _show(error)
        lost = isinstance(error, RankLostError)
        if words := lost_rank_in_words(error, attachment.registry.run_dir):
            write_line(f"nantrap: {words}")
            lost = True
        if lost:
            tell_launcher(words or str(error))
        if words := refused_in_words(error):
            write_line(f"nantrap: {words}")
        attachment.registry.note_end(error)
        before = sum(loop.tally.incidents for loop in attachment.registry)
        itself = isinstance(error, AssertionError)
        attachment.registry.asked.ended = (
            _ENDED_ITSELF if itself else f"the script ended with {type(error).__name__} after this loss"
        )
        with ended_by(error):  # `assert math.isfinite(loss)`: the loss that the script tested is the reason
            attachment.registry.end()
        if sum(loop.tally.incidents for loop in attachment.registry) == before:
            inference = attachment.registry.inference.evaluations
            found = [loop.explain(error) for loop in attachment.registry]
            if not any(found) and not inference.explain(error):
                any(each.explain_line(error) for each in attachment.registry.evaluations)
        if lost and attachment.settings.exit_by_kind:
            return RANK_LOST
        return STOPPED if came_from_guard(error) else 1
    return 0


def _stopped_twice(settings: RunSettings) -> RunStop | None:
    """How the last two attempts were stopped, if a scheduler has started the run again and both stopped alike."""
    if not settings.run_dir or not restart_count():
        return None
    rank = os.environ.get("RANK", "0")
    found = [last_stop(journal) for journal in Path(settings.run_dir).glob(f"**/journal-r{rank}.jsonl")]
    return next((stop for stop in found if stop is not None and stop.repeated), None)


def _code_of_stop(attachment: Attachment) -> int:
    """3, or with `--exit-by-kind` the code of the first guard that stopped the run."""
    kinds = [loop.stopped.kind for loop in attachment.registry if loop.stopped is not None]
    return BY_KIND[kinds[0]] if kinds and attachment.settings.exit_by_kind else STOPPED


def _wait_for_threads(before: set[threading.Thread]) -> None:
    """Waits for threads, as Python does before it ends: some scripts train in one. Those of executors end with it."""
    pooled = getattr(concurrent.futures.thread, "_threads_queues", {})
    for thread in threading.enumerate():
        if thread not in before and not thread.daemon and thread not in pooled:
            thread.join()


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)  # noqa: T201
    return 1


def _show(error: BaseException) -> None:
    """The traceback as Python would print it: it begins in the script, and goes from there to the library."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = _without_us(each)
            waiting += [each.__cause__, each.__context__]
    sys.excepthook(type(error), error, error.__traceback__)


def _without_us(error: BaseException) -> TracebackType | None:
    """The traceback without our frames, unless it ends in one of them: then the bug may be ours."""
    kept: list[TracebackType] = []
    ours = False
    step = error.__traceback__
    while step is not None:
        module = str(step.tb_frame.f_globals.get("__name__", ""))
        ours = module.startswith("nantrap.launch.") or (ours and module.startswith("nantrap."))
        if not ours:
            kept.append(step)
        step = step.tb_next
    if ours and not isinstance(error, SyntaxError):  # a script that does not compile ends in our call of `compile`
        return error.__traceback__
    built: TracebackType | None = None
    for step in reversed(kept):
        built = TracebackType(built, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return built


_attached: list[tuple[Attachment, RunSettings]] = []


def load(shell: Any) -> None:
    """Attach, once, with the settings of the environment and of `pyproject.toml`."""
    if hasattr(shell, "register_magic_function"):
        shell.register_magic_function(magic, "line", "nantrap")
    if _attached:
        return
    settings = read_settings({"name": "notebook"}, environment=os.environ, folder=Path.cwd())
    attachment = Attachment(settings)
    attachment.enter_living()
    _attached.append((attachment, settings))
    attachment.registry.say(
        f"every optimizer of this notebook is guarded from here on (policy {settings.policy_name}); reports go to "
        f"{settings.run_dir or 'runs/'}; %unload_ext nantrap ends it"
    )


def unload(shell: Any) -> None:
    """Sum up and detach."""
    if _attached:
        attachment, settings = _attached.pop()
        attachment.registry.record_abandoned()
        summary = RunSummary.of(attachment)
        attachment.detach()
        print_summary(summary, 0, settings)
