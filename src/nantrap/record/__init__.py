"""Journal, run description, incident bundles: what a run leaves on disk, and the readers of it."""

from nantrap.record.history import History, StepRecord
from nantrap.record.journal import Journal
from nantrap.record.reader import JournalLine, journal_paths, read_journal
from nantrap.record.run_info import write_atomically, write_run_info

__all__ = [
    "History",
    "Journal",
    "JournalLine",
    "StepRecord",
    "journal_paths",
    "read_journal",
    "write_atomically",
    "write_run_info",
]
