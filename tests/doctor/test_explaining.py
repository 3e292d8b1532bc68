"""`nantrap.explain` knows every code that a command reports, and opens without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import nantrap
from nantrap.causes import pages
from nantrap.doctor.data.findings import RULES
from nantrap.doctor.pages import check_pages
from nantrap.errors import UsageError


def test_every_cause_check_and_rule_has_a_page() -> None:
    for page in pages():
        assert nantrap.explain(page.code) == nantrap.explain(page.slug) == page.text()
    for check in check_pages():
        assert nantrap.explain(check.code) == nantrap.explain(check.slug) == check.text()
    for rule in RULES.values():
        assert nantrap.explain(rule.code) == nantrap.explain(rule.code.lower()) == rule.text()


def test_slugs() -> None:
    assert nantrap.explain("isnan-misses-inf").startswith("NT851 isnan_misses_inf: A loop skips bad steps by isnan")
    assert nantrap.explain("outlier").startswith("NT153 outlier: a sample's largest magnitude is above 50 times")


def test_what_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="NT499"):
        nantrap.explain("NT499")
    with pytest.raises(UsageError, match="`nantrap audit` prints what it means"):
        nantrap.explain("NT901")


def test_checks_open_without_torch() -> None:
    code = "import nantrap, sys; nantrap.explain('NT851'); nantrap.explain('NT151'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
