"""Journal, run description, incident bundles: what a run leaves on disk, and the readers of it."""

from nantrap.record.bundle import Bundle, Material, read_bundle, write_bundle
from nantrap.record.durable import write_atomically
from nantrap.record.history import History, StepRecord
from nantrap.record.journal import Journal
from nantrap.record.reader import JournalLine, journal_paths, read_journal
from nantrap.record.run_info import write_run_info

__all__ = [
    "Bundle",
    "History",
    "Journal",
    "JournalLine",
    "Material",
    "StepRecord",
    "journal_paths",
    "read_bundle",
    "read_journal",
    "write_atomically",
    "write_bundle",
    "write_run_info",
]
