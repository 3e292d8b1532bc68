"""The end of a guarded run: the journal is closed, and a summary is printed if anything happened."""

from __future__ import annotations

from nantrap.guard.messages import summary_text
from nantrap.guard.recorder import Recorder
from nantrap.guard.state.recovery import Recovery


def summary_of(recorder: Recorder, recovery: Recovery) -> str:
    """What was applied, what was skipped and why, which samples are bad, and where a restart begins."""
    more = [recorder.samples.summary() if recorder.samples is not None else "", recovery.where_to_restart()]
    return "\n".join([summary_text(recorder.tally, run_dir=recorder.run_dir), *filter(None, more)])


def end_run(recorder: Recorder, recovery: Recovery) -> None:
    """The end of a run, also if its guard was never closed: journal, report, and a summary if anything happened."""
    recorder.close()
    if recorder.tally.incidents or recorder.tally.dropped_micro_batches or recorder.tally.outside:
        recorder.say(*summary_of(recorder, recovery).split("\n"))
