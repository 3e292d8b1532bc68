"""Pages: one HTML file each, with its own style, no script, no network, and a policy that allows nothing else."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from nantrap._version import __version__
from nantrap.incident.wording import percent, size, value, visible_lines
from nantrap.report import diagnostics as words
from nantrap.report.page_charts import legend, magnitudes_chart, moments_charts, run_charts
from nantrap.report.poison import path_note
from nantrap.report.terminal import render_incident
from nantrap.report.view_incident import IncidentView
from nantrap.report.view_run import RunView

_LONGEST_TEXT = 4000


def incident_page(view: IncidentView, *, links: bool = True) -> str:
    """The page of an incident.

    Args:
        view: what to show.
        links: whether the page is in the folder of the incident, so that files there can be linked.
    """
    return render("incident.html.j2", links=links, **incident_context(view))


def incident_context(view: IncidentView) -> dict[str, Any]:
    """What the template of an incident needs in addition to the view."""
    excerpt = view.said.excerpt
    width = max([len(str(number)) for number, _, _ in view.source], default=1)
    incident = view.incident
    moments = moments_charts(view)
    return {
        "view": view,
        "gutter": " " * width,
        "caret": "" if excerpt is None else " " * excerpt.start + "^" * max(1, excerpt.end - excerpt.start),
        "caret_blank": "" if excerpt is None else " " * excerpt.start,
        "magnitudes": magnitudes_chart(view),
        "moments": moments,
        "path_note": path_note(incident),
        "terms": words.terms_text(incident),
        "samples": words.samples_text(replace(incident, dataset_indices=())) if incident.samples else "not searched",
        "plain": render_incident(incident, width=100),
        "sections": _sections(view, before=bool(view.frames or view.magnitudes or moments)),
    }


def run_page(view: RunView, *, links: bool = True) -> str:
    """The page of a run. `links`: whether it is in the folder of the run."""
    return render("run.html.j2", links=links, live=False, incident_link=_report_link, **run_context(view))


def run_context(view: RunView) -> dict[str, Any]:
    """What the template of a run needs in addition to the view."""
    present = {"stages": bool(view.stages), "evaluation": bool(view.evaluations) or len(view.ranks) > 1}
    titles = (
        ("curves", "Curves"), ("causes", "Causes"), ("stages", "Checks"), ("evaluation", "Evaluation, ranks"),
        ("files", "Files and settings"),
    )  # fmt: skip
    return {
        "view": view,
        "charts": run_charts(view),
        "legend": legend(view),
        "has_plan": any(stage.stage != "whole run" for stage in view.stages),
        "sections": [(ident, title) for ident, title in titles if present.get(ident, True)],
    }


def _report_link(folder: str) -> str:
    return f"{quote(folder)}/report.html" if "/" in folder else f"incidents/{quote(folder)}/report.html"


def render(template: str, *, script: str = "", extra_style: str = "", **context: Any) -> str:
    """A whole page from a template. Style and script are allowed by their hash, everything else is forbidden."""
    style = stylesheet() + extra_style
    return (
        _environment()
        .get_template(template)
        .render(
            policy=content_policy(style, script),
            style=Markup(style),  # ours, from the package
            script=Markup(script),
            version=__version__,
            percent=percent,
            value=value,
            size=size,
            isfinite=math.isfinite,
            dotted=dotted,
            **context,
        )
    )


def content_policy(style: str, script: str = "") -> str:
    """The content security policy of a page that holds this style and this script."""
    parts = ["default-src 'none'", f"style-src {_sha256(style)}", "base-uri 'none'"]
    if script:
        return "; ".join([*parts, "form-action 'self'", f"script-src {_sha256(script)}", "connect-src 'self'"])
    return "; ".join([*parts, "form-action 'none'"])


@functools.cache
def stylesheet() -> str:
    """The style that all pages share."""
    return resource("style.css")


def resource(name: str) -> str:
    """A text file that belongs to the templates."""
    return resources.files("nantrap.report").joinpath("templates", name).read_text(encoding="utf-8")


def _sections(view: IncidentView, *, before: bool) -> Sequence[tuple[str, str]]:
    """The sections of the page that have something to show, each with its title, in reading order."""
    present = {
        "source": bool(view.source),
        "before": before,
        "stats": bool(view.stats),
        "samples": bool(view.incident.samples or view.incident.dataset_indices),
        "causes": bool(view.causes),
        "environment": bool(view.environment or view.around.files),
    }
    titles = (
        ("source", "Source"), ("path", "Path of the poison"), ("before", "Operations before"), ("stats", "Statistics"),
        ("samples", "Guilty samples"), ("causes", "Causes"), ("trials", "Trials"), ("fix", "Fix and next steps"),
        ("replay", "Replay"), ("diagnostic", "As text"), ("environment", "Environment"),
        ("similar", "Similar incidents"),
    )  # fmt: skip
    return [(ident, title) for ident, title in titles if present.get(ident, True)]


@functools.cache
def _environment() -> Environment:
    """How templates are filled in: everything is escaped, and a name that does not exist is an error."""
    return Environment(
        loader=PackageLoader("nantrap.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )


def dotted(name: str) -> Markup:
    """A long name that a browser may break behind its dots and slashes rather than inside of a word."""
    return Markup(re.sub(r"(?<=\w)([./])(?=\w)", r"\1<wbr>", str(escape(_finalized(name)))))


def _finalized(found: Any) -> Any:
    """Every value that reaches a page: our own markup unchanged, text without control characters and with a limited
    length."""
    if isinstance(found, Markup) or not isinstance(found, str):
        return found
    text = found if len(found) <= _LONGEST_TEXT else found[:_LONGEST_TEXT] + " ..."
    return visible_lines(text)


def _sha256(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
