"""`nantrap run`: attach, run the program, say how it went."""

from __future__ import annotations

import sys
from types import TracebackType

from nantrap.errors import NonFiniteError
from nantrap.launch.attach import Attachment
from nantrap.launch.children import came_from_guard
from nantrap.launch.script import Program
from nantrap.launch.settings import Settings
from nantrap.launch.summary import Summary, print_summary

INTERRUPTED = 130
STOPPED = 3
NOT_FINITE = 1


def run_program(program: Program, settings: Settings) -> int:
    """Run a program under guard. Returns its own exit code, or 3 if the guard stopped it, or 1 if it ends poisoned."""
    attachment = Attachment(settings)
    code = _run(program)
    sys.stdout.flush()
    summary = Summary.of(attachment)
    attachment.detach()
    code = STOPPED if summary.stopped else code
    if not summary.state_finite and code == 0:
        code = NOT_FINITE
    print_summary(summary, code, settings)
    return code


def _run(program: Program) -> int:
    try:
        program.run()
    except SystemExit as wish:
        return _exit_code(wish)
    except KeyboardInterrupt as error:
        _show(error)
        return INTERRUPTED
    except NonFiniteError as error:
        print(f"nantrap: stopped: {error}", file=sys.stderr)  # noqa: T201
        return STOPPED
    except BaseException as error:
        _show(error)
        return STOPPED if came_from_guard(error) else 1
    return 0


def _exit_code(wish: SystemExit) -> int:
    if wish.code is None:
        return 0
    if isinstance(wish.code, int):
        return wish.code
    print(wish.code, file=sys.stderr)  # noqa: T201
    return 1


def _show(error: BaseException) -> None:
    """The traceback as Python would print it: it begins in the script."""
    sys.stdout.flush()
    sys.excepthook(type(error), error, _from_script_on(error.__traceback__))


def _from_script_on(traceback: TracebackType | None) -> TracebackType | None:
    step = traceback
    while step is not None:
        if step.tb_frame.f_globals.get("__name__") == "__main__":
            return step
        step = step.tb_next
    return traceback
