"""Is a run healthy: a verdict on a finished or a running run, or on a log that nantrap did not write. No torch.

verdict = health.judge(record.open_run("runs/exp1"), expect=health.read_expectations("stages.yaml"))
verdict.word                    # "healthy", "doubtful", "sick", "unknown"
verdict.findings[0].summary     # "loss falls from 10.2 to 2.31"
"""

from nantrap.health.expectations import Expectations, Stage, read_expectations
from nantrap.health.finding import Finding, StageVerdict, Verdict
from nantrap.health.judging import judge

__all__ = ["Expectations", "Finding", "Stage", "StageVerdict", "Verdict", "judge", "read_expectations"]
