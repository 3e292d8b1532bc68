"""placeholder"""
from __future__ import annotations
from typing import Any
class ResumeFinding: ...
def check_resume(**options: Any) -> list[ResumeFinding]: return []
