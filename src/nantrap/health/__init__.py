"""Is a run healthy: a verdict on a finished or a running run, or on a log that nantrap did not write. No torch.

verdict = health.judge(record.open_run("runs/exp1"), expect=health.read_expectations("stages.yaml"))
verdict.word                    # "healthy", "doubtful", "sick", "unknown"
verdict.findings[0].summary     # "loss falls from 10.2 to 2.31"
"""

from nantrap.health.expectations import Expectations, PlannedStage, read_expectations
from nantrap.health.findings import HealthFinding
from nantrap.health.planned import StageVerdict
from nantrap.health.verdict import HealthVerdict, judge

__all__ = [
    "Expectations",
    "HealthFinding",
    "HealthVerdict",
    "PlannedStage",
    "StageVerdict",
    "judge",
    "read_expectations",
]
