"""Journal, run description, incident bundles: what a run leaves on disk, and the readers of it.

`open_run` opens a run or a foreign log as columns, without torch.
"""

from nantrap.record.bundle import Material, ReadBundle, read_bundle, write_bundle
from nantrap.record.columns import Column, Labels
from nantrap.record.durable import write_atomically
from nantrap.record.journal import (
    RUN_ENDS,
    RUN_RESUMES,
    RUN_STARTS,
    History,
    Journal,
    StepRecord,
)
from nantrap.record.listeners import Listener, open_listeners
from nantrap.record.run import IncidentFolder, JournalMark, Run, open_run, steps_of
from nantrap.record.run_info import write_run_info
from nantrap.record.sampling import Envelope, envelope
from nantrap.record.series import ACTIONS, NotedStep, RunSegment, Series, is_evaluation
from nantrap.record.tally import StepTally, apart_lines, cause_lines, tally_of
from nantrap.record.textlog import LogNote

__all__ = [
    "ACTIONS",
    "RUN_ENDS",
    "RUN_RESUMES",
    "RUN_STARTS",
    "Column",
    "Envelope",
    "History",
    "IncidentFolder",
    "Journal",
    "JournalMark",
    "Labels",
    "Listener",
    "LogNote",
    "Material",
    "NotedStep",
    "ReadBundle",
    "Run",
    "RunSegment",
    "Series",
    "StepRecord",
    "StepTally",
    "apart_lines",
    "cause_lines",
    "envelope",
    "is_evaluation",
    "open_listeners",
    "open_run",
    "read_bundle",
    "steps_of",
    "tally_of",
    "write_atomically",
    "write_bundle",
    "write_run_info",
]
