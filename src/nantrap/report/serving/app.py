"""The pages and events of the live server. Read-only: it opens files for reading and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from nantrap.errors import NantrapError
from nantrap.incident import BY_SLUG
from nantrap.incident.wording import counted, duration, visible
from nantrap.record import open_run
from nantrap.report.charts import spark
from nantrap.report.journals import journals_of
from nantrap.report.page_charts import standing_charts
from nantrap.report.pages import incident_context, render, resource, run_context
from nantrap.report.serving.access import AccessControl
from nantrap.report.serving.cache import BUCKET
from nantrap.report.serving.content import (
    CONTENT_TYPE,
    KINDS,
    facts_of,
    feed_of,
    lines_of,
    message_of,
    metrics,
    ranks_of,
    raw_columns,
    results_of,
)
from nantrap.report.serving.index import Index
from nantrap.report.serving.summary import Summary
from nantrap.report.surroundings import environment, read_json
from nantrap.report.view_run import view_run
from nantrap.report.writing import read_incident_view

_MOST_LISTED = 200
_IN_HEADING = {"incidents": "with incidents"}
_RAW_STEPS = 4 * BUCKET * 4
_SLICES = 4
_LARGEST_REPORT = 400_000_000


class LiveServer:
    """The application. Holds the index of runs and how often it looks for changes.

    Args:
        index: the runs.
        interval: seconds between two reads of a file; small in tests.
    """

    def __init__(self, index: Index, *, interval: float = 1.0) -> None:
        self._index = index
        self._interval = interval
        self._stopping = asyncio.Event()

    def application(self, *, hosts: tuple[str, ...], token: str | None = None) -> AccessControl:
        """The application with its guard."""
        routes = [
            Route("/", self.list_page),
            Route("/events", self.list_events),
            Route("/run/{ident}", self.run_page),
            Route("/run/{ident}/events", self.run_events),
            Route("/run/{ident}/report", self.report_page),
            Route("/run/{ident}/incident/{name}", self.incident_page),
            Route("/api/runs", self.runs_json),
            Route("/api/run/{ident}/series", self.series_json),
            Route("/metrics", self.metrics_text),
            Route("/healthz", self.health_text),
        ]
        return AccessControl(Starlette(routes=routes, lifespan=self._lifespan), hosts=hosts, token=token)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Find the runs before the first request, and look for new ones until the server ends."""
        self._stopping = asyncio.Event()
        await run_in_threadpool(self._index.discover)
        scanning = asyncio.create_task(self._scan())
        try:
            yield
        finally:
            self._stopping.set()
            await scanning

    async def _scan(self) -> None:
        """In the background: look for new runs, and gather the curves of journals that grew."""
        while not self._stopping.is_set():
            more = False
            with contextlib.suppress(OSError, ValueError):
                await run_in_threadpool(self._index.discover)
                more = await run_in_threadpool(self._index.scan)
            await self._wait(0.05 if more else 5 * self._interval)

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    # ---- pages

    async def list_page(self, request: Request) -> Response:
        """The list of runs, the ones that need attention first."""
        query = request.query_params.get("q", "")[:200]
        found = await run_in_threadpool(self._listed, query)
        text = _live_page(
            "live_list.html.j2",
            root=str(self._index.root), query=query, heading=self._heading(found), runs=found[:_MOST_LISTED],
            hidden=max(0, len(found) - _MOST_LISTED), spark=spark, codes=_codes(), ago=_ago, kinds=KINDS,
            results=await run_in_threadpool(results_of, self._index.root),
        )  # fmt: skip
        return HTMLResponse(text)

    async def run_page(self, request: Request) -> Response:
        """One run: its curves, its events, its settings."""
        ident = request.path_params["ident"]
        summary = await run_in_threadpool(self._index.summary, ident)
        if summary is None:
            return _missing()
        return HTMLResponse(await run_in_threadpool(self._run_text, summary))

    def _run_text(self, summary: Summary) -> str:
        """The live page of one run, from what the index has read so far."""
        journals = journals_of(summary.path)
        rows = self._index.rows(summary.ident)
        counts = self._index.counts(summary.ident)
        codes = _codes()
        groups = [(codes.get(slug, "NT000"), slug, n) for slug, n in sorted(counts.causes.items(), key=lambda i: -i[1])]
        return _live_page(
            "live_run.html.j2",
            run=summary, facts=facts_of(summary, self._index), charts=standing_charts(rows),
            feed=feed_of(rows, summary.path) if summary.kind == "run" else lines_of(self._index.log(summary.ident)),
            groups=groups[:12], ranks=ranks_of(journals), results=results_of(summary.path),
            environment=environment(read_json(summary.path / "run.json")),
        )  # fmt: skip

    async def report_page(self, request: Request) -> Response:
        """The report on a run, made now."""
        ident = request.path_params["ident"]
        folder = self._index.path(ident)
        if folder is None:
            return _missing()
        if _size(folder) > _LARGEST_REPORT:
            return PlainTextResponse(f"this journal is large; run: nantrap report {visible(str(folder))}", 413)

        def text() -> str:
            view = view_run(open_run(folder))
            return render(
                "live_document.html.j2", body="run_body.html.j2", ident=ident, run_name=folder.name, title="report",
                links=True, live=True, incident_link=functools.partial(self._incident_link, folder),
                **run_context(view),
            )  # fmt: skip

        return await _document(text)

    def _incident_link(self, folder: Path, name: str) -> str:
        """Where the page of an incident is; that of another optimizer belongs to a run of its own."""
        part = name.partition("/")[0] if "/" in name else ""
        return f"/run/{self._index.ident_of(folder / part)}/incident/{name.rpartition('/')[2]}"

    async def incident_page(self, request: Request) -> Response:
        """The page of an incident."""
        ident = request.path_params["ident"]
        folder = await run_in_threadpool(self._index.incident_folder, ident, request.path_params["name"])
        if folder is None:
            return _missing()

        def text() -> str:
            view = read_incident_view(folder)
            title = f"{view.said.code}, step {view.incident.step:,}"
            return render(
                "live_document.html.j2", body="incident_body.html.j2", ident=ident, run_name=view.around.run_name,
                title=title, links=False, **incident_context(view),
            )  # fmt: skip

        return await _document(text)

    # ---- data

    async def runs_json(self, request: Request) -> Response:
        """The list as JSON."""
        found = await run_in_threadpool(self._listed, request.query_params.get("q", "")[:200])
        return JSONResponse(self._list_message(found))

    async def series_json(self, request: Request) -> Response:
        """Curves of a range of steps: every step of a short range, stored columns of a long one."""
        ident = request.path_params["ident"]
        summary = await run_in_threadpool(self._index.summary, ident)
        if summary is None:
            return _missing()
        try:
            first = max(0, int(request.query_params.get("first", max(0, summary.step - 599))))
            last = min(summary.step, int(request.query_params.get("last", summary.step)))
        except ValueError:
            return PlainTextResponse("first and last are whole numbers", 400)
        if last < first:
            return PlainTextResponse("first is after last", 400)
        if last - first < _RAW_STEPS:
            rows = await run_in_threadpool(self._index.window, ident, first, last)
            return JSONResponse(raw_columns(rows, first, last))
        for _ in range(_SLICES):  # the rest is gathered in the background
            if not await run_in_threadpool(self._index.scan_run, ident):
                break
        return JSONResponse(await run_in_threadpool(self._index.curves, ident, first, last))

    async def metrics_text(self, request: Request) -> Response:
        """For Prometheus."""

        def text() -> str:
            runs = self._index.summaries(seconds=5.0)  # the rest is in the next scrape, which must not time out
            return metrics((run, self._index.counts(run.ident) if run.kind == "run" else None) for run in runs)

        return PlainTextResponse(await run_in_threadpool(text), headers={"Content-Type": CONTENT_TYPE})

    async def health_text(self, request: Request) -> Response:
        """Whether the server answers."""
        return PlainTextResponse("ok\n")

    # ---- events

    async def list_events(self, request: Request) -> Response:
        """The list again whenever something in it changed."""
        query = request.query_params.get("q", "")[:200]

        async def events() -> AsyncIterator[str]:
            """The list of runs whenever it has changed, else a sign that the server still works."""
            earlier = ""
            while not self._stopping.is_set() and not await request.is_disconnected():
                found = await run_in_threadpool(self._listed, query)
                text = json.dumps(self._list_message(found), allow_nan=False)
                yield f"data: {text}\n\n" if text != earlier else ": still here\n\n"
                earlier = text
                await self._wait(2 * self._interval)

        return StreamingResponse(events(), media_type="text/event-stream")

    async def run_events(self, request: Request) -> Response:
        """New steps of a run as they are written."""
        ident = request.path_params["ident"]
        summary = await run_in_threadpool(self._index.summary, ident)
        if summary is None:
            return _missing()
        try:
            after = int(request.query_params.get("after", summary.step))
        except ValueError:
            return PlainTextResponse("after is a whole number", 400)

        async def events() -> AsyncIterator[str]:
            """New rows of one run as they are written; its state now and then without them, as it depends on time."""
            rows, new = await run_in_threadpool(self._index.follow, ident)
            rows = [row for row in rows if row.step > after]
            quiet = 0
            while not self._stopping.is_set() and not await request.is_disconnected():
                now = await run_in_threadpool(self._index.summary, ident)
                if now is not None and (rows or quiet % 10 == 0):
                    yield f"data: {json.dumps(message_of(now, rows, self._index), allow_nan=False)}\n\n"
                else:
                    yield ": still here\n\n"
                quiet = 0 if rows else quiet + 1
                await self._wait(self._interval)
                rows = await run_in_threadpool(new)

        return StreamingResponse(events(), media_type="text/event-stream")

    def _list_message(self, found: list[Summary]) -> dict[str, Any]:
        return {"heading": self._heading(found), "runs": [summary.to_dict() for summary in found[:_MOST_LISTED]]}

    def _heading(self, found: list[Summary]) -> str:
        by_state: dict[str, int] = {}
        for summary in found:
            by_state[summary.state.word] = by_state.get(summary.state.word, 0) + 1
        states = ", ".join(f"{number:,} {_IN_HEADING.get(word, word)}" for word, number in by_state.items())
        unread = self._index.unread
        more = f", {unread:,} more being read" if unread else ""
        return counted(len(found), "run") + (f": {states}" if states else "") + more

    def _listed(self, query: str) -> list[Summary]:
        wanted = query.lower().split()
        found = self._index.summaries(seconds=2.0)
        return [s for s in found if all(word in f"{s.name} {s.state.word} {s.incident}".lower() for word in wanted)]


def _live_page(template: str, **context: Any) -> str:
    return render(template, script=resource("live.js"), extra_style=resource("live.css"), **context)


async def _document(text: Callable[[], str]) -> Response:
    """A report that is made now, or what is wrong with its files."""
    try:
        return HTMLResponse(await run_in_threadpool(text))
    except NantrapError as error:
        return PlainTextResponse(visible(str(error)), 422)


def _missing() -> Response:
    return PlainTextResponse("there is no such run or incident here", 404)


def _size(path: Path) -> int:
    """Bytes that a report of this run or log has to read."""
    files = journals_of(path) or ([path] if path.is_file() else list(path.glob("*tfevents*")))
    return sum(file.stat().st_size for file in files)


@functools.cache
def _codes() -> Mapping[str, str]:
    return {slug: entry.code for slug, entry in BY_SLUG.items()}


def _ago(modified: float) -> str:
    return f"{duration(time.time() - modified)} ago"
