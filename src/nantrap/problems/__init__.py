"""What is wrong outside of a guarded step: one shape for all commands, and one file for each output. No torch.

problem   `Problem`, the shape of what the commands find, and values that JSON can hold
terminal  lines for a person, with colours on a terminal
sarif     a document for code scanning
github    workflow commands
junit     XML for test dashboards
progress  the bar on a terminal while a command reads
"""

from __future__ import annotations

from nantrap.problems.problem import NOWHERE, Problem, ProblemPlace, Severity, worst

__all__ = ["NOWHERE", "Problem", "ProblemPlace", "Severity", "worst"]
