"""The live view in the terminal, a Textual application (an optional extra). All that it shows comes from `live`."""

from __future__ import annotations

import re
import time
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from nantrap import health
from nantrap.record import Run
from nantrap.report.live import BAD, LiveValue, LiveView, incident_texts, view_of
from nantrap.report.states import SIGNS

_TONES = {"ok": "bold green", "warn": "bold yellow", "bad": "bold red", "muted": "bold"}
_SIGNS = {**SIGNS, "running": ("ok", "●"), "waiting": ("muted", "…")}
_WINDOWS = (None, 10_000, 1_000, 100)


class WatchApp(App[None]):
    """Shows one run. Holds which rank, incident and stretch of the run are chosen."""

    CSS = """
    Screen { layers: base; }
    #head { height: auto; padding: 0 1; }
    #values { height: auto; max-height: 55%; padding: 0 1; overflow-y: auto; }
    #rows { text-wrap: nowrap; }
    #counts { height: auto; padding: 0 1; }
    #incident { height: 1fr; border-top: solid $accent; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("left_square_bracket", "incident(-1)", "older"),
        Binding("right_square_bracket", "incident(1)", "newer"),
        Binding("r", "rank", "rank"),
        Binding("w", "window", "window"),
        Binding("l", "scale", "log/linear"),
        Binding("p", "pause", "pause"),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, run: Run, *, interval: float = 1.0) -> None:
        super().__init__()
        self._run_read = run
        self._interval = interval
        self._rank_index = 0
        self._window_index = 0
        self._log_scale = True
        self._paused = False
        self._incident_index: int | None = None  # None: always the newest
        self._verdict: health.HealthVerdict | None = None
        self._judge_after = 0.0

    def compose(self) -> ComposeResult:
        """The parts of the screen."""
        yield Static(id="head")
        yield VerticalScroll(Static(id="rows"), id="values")
        yield Static(id="counts")
        yield VerticalScroll(Static(id="text"), id="incident")
        yield Footer()

    def on_mount(self) -> None:
        """Draw, and update at an interval."""
        self.title = "nantrap watch"
        self.draw()
        self.set_interval(self._interval, self.look)

    def on_resize(self) -> None:
        """The sparklines fill the width."""
        self.draw()

    def look(self) -> None:
        """Read what was appended; the age of the last line changes even if nothing was."""
        if not self._paused:
            self._run_read.refresh()
            self.draw()

    def draw(self) -> None:
        """Show the run as it is now."""
        run, width = self._run_read, max(24, self.size.width - 2)
        view = view_of(
            run, rank=run.ranks[self._rank_index % len(run.ranks)], now=time.time(), width=_spark_width(width),
            verdict=self._judged(), window=_WINDOWS[self._window_index], log=self._log_scale,
        )  # fmt: skip
        self.query_one("#head", Static).update(self._head(view, width))
        self.query_one("#rows", Static).update(_rows(view.values, width))
        self.query_one("#counts", Static).update(self._counts(view))
        texts = incident_texts(run, width=width - 4, color=True)  # beside the bar that scrolls
        self.query_one("#text", Static).update(self._incident(texts, view))

    def _judged(self) -> health.HealthVerdict | None:
        """The health of the run, computed again if that took only a small part of the time since."""
        begin = time.monotonic()
        if begin >= self._judge_after:
            self._verdict = health.judge(self._run_read)
            self._judge_after = time.monotonic() + max(2.0, 20 * (time.monotonic() - begin))
        return self._verdict

    def _head(self, view: LiveView, width: int) -> Text:
        """The state and the headline of the run, with a bar of its progress where the number of steps is known."""
        text = Text(no_wrap=False)
        tone, sign = _SIGNS[view.state]
        name = f"{sign} {_cut(view.name, width - 4)}  "
        text.append(name, style=_TONES[tone])
        text.append(_in_lines((*view.facts, *(("(paused)",) if self._paused else ())), width, len(name)))
        if view.share is not None:
            done = round(view.share * width)
            text.append("\n" + "━" * done, style="green")
            text.append("━" * (width - done), style="grey37")
        return text

    def _counts(self, view: LiveView) -> Text:
        """How many steps were applied, skipped and rolled back; the ranks, and what could not be read."""
        text = Text()
        if view.steps and (view.skipped or self._run_read.kind == "nantrap"):
            text.append(f"applied {view.applied:,} of {view.steps:,}")
            text.append(f" · skipped {view.skipped:,}", style="yellow" if view.skipped else "")
            text.append(f" · rolled back {view.rollbacks:,}", style="yellow" if view.rollbacks else "")
            if view.scaler_probes:
                text.append(f" · left out by the GradScaler {view.scaler_probes:,}")
        window = _WINDOWS[self._window_index]
        if window is not None:
            text.append(f"  (curves: last {window:,})", style="dim")
        for row in view.ranks[:8]:
            chosen = row.rank == self._run_read.ranks[self._rank_index % len(self._run_read.ranks)]
            line = f"rank {row.rank}: step {row.step:,}, loss {row.loss}, skipped {row.skipped:,}"
            text.append(f"\n{'▸' if chosen else ' '} {line}", style="bold" if chosen else "")
        if len(view.ranks) > 8:
            text.append(f"\n  and {len(view.ranks) - 8} more ranks")
        for trouble in view.trouble[:3]:
            text.append(f"\n✖ {trouble}", style="red")
        return text

    def _incident(self, texts: list[str], view: LiveView) -> Text:
        if not texts:
            return Text("no incident" if view.step >= 0 else "waiting for the first step", style="dim")
        index = len(texts) - 1 if self._incident_index is None else min(self._incident_index, len(texts) - 1)
        kind = "incident" if self._run_read.incidents else "line about NaN or an error,"
        shown = Text(f"{kind} {index + 1} of {len(texts)}\n", style="dim")
        return shown.append_text(Text.from_ansi(texts[index]))

    # ---- keys

    def action_incident(self, by: int) -> None:
        """Show an older or a newer incident."""
        count = len(incident_texts(self._run_read, width=80))
        if count:
            now = count - 1 if self._incident_index is None else self._incident_index
            now = max(0, min(count - 1, now + by))
            self._incident_index = None if now == count - 1 else now
            self.draw()

    def action_rank(self) -> None:
        """The next rank."""
        self._rank_index = (self._rank_index + 1) % len(self._run_read.ranks)
        self.draw()

    def action_window(self) -> None:
        """Another stretch of the run for the curves."""
        self._window_index = (self._window_index + 1) % len(_WINDOWS)
        self.draw()

    def action_scale(self) -> None:
        """Logarithmic or linear curves."""
        self._log_scale = not self._log_scale
        self.draw()

    def action_pause(self) -> None:
        """Pause the updates, or resume them."""
        self._paused = not self._paused
        self.look()
        self.draw()

    def action_scroll(self, by: int) -> None:
        """Move through a long diagnostic."""
        self.query_one("#incident", VerticalScroll).scroll_relative(y=by, animate=False)


def _in_lines(facts: tuple[str, ...], width: int, used: int) -> str:
    """The facts one after the other, each whole in its line; `used` characters of the first line are taken."""
    text = ""
    for number, fact in enumerate(facts):
        if number and used + len(fact) + 3 > width:
            text, used = f"{text}\n", 0
        elif number:
            text, used = f"{text} · ", used + 3
        text, used = text + fact, used + len(fact)
    return text


_NARROW = 64
"""Below this many columns a value has its name, its last number and its curve, and nothing else."""


def _spark_width(width: int) -> int:
    return max(4, width - 23) if width < _NARROW else max(8, width - 56)


def _rows(values: tuple[LiveValue, ...], width: int) -> Text:
    """The values, one per line: name, last value, sparkline, and the alarm or the range where there is room."""
    text = Text(no_wrap=True, overflow="crop")
    narrow = width < _NARROW
    names, numbers = (10, 10) if narrow else (18, 12)
    for value in values:
        bad = bool(value.alarm)
        text.append(f"{_cut(value.name, names):<{names}} ", style="bold")
        text.append(f"{value.last:>{numbers}}", style="bold red" if bad else "")
        text.append("  ")
        for piece in re.split(f"({BAD}+)", value.spark):
            text.append(piece, style="red" if piece.startswith(BAD) else "cyan")
        if bad and not narrow:
            text.append(f"  {value.alarm}", style="bold red")
        elif value.course and not narrow:
            room = width - names - numbers - len(value.spark) - 5
            shown = value.course if len(value.course) <= room else f"{value.low} … {value.high}"
            text.append(f"  {shown}", style="dim")
        text.append("\n")
    text.rstrip()
    return text


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else "…" + name[1 - width :]
