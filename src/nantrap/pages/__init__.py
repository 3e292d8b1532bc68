"""The pages of the codes: what `nantrap explain NT203` prints, and what the documentation shows. Needs no torch."""

from __future__ import annotations

from nantrap.pages.page import Page, cause_pages, check_pages
from nantrap.pages.search import explain, find_page, search

__all__ = ["Page", "cause_pages", "check_pages", "explain", "find_page", "search"]
