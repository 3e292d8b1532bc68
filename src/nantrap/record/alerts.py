"""Alerts: a command or a webhook is called when something happens in a run that needs attention immediately.

    Guard(..., alerts=Alerts(slack=os.environ["SLACK_WEBHOOK_URL"], command="notify-send nantrap"))
    nantrap run --alert slack:SLACK_WEBHOOK_URL train.py       # the name of an environment variable, never the address

Events: `incident`, `rollback`, `stop`, and `stall` (no step for a long time). Of each event at most one alert is sent
within `every` seconds; the next one says how many were left out. A stop is always sent. Everything happens in a
thread, and nothing that goes wrong there reaches the training. The address of a webhook is a secret: it is in no file
and in no message.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from nantrap.errors import UsageError
from nantrap.incident import Incident
from nantrap.record.listeners import BackgroundQueue

EVENTS: Final = ("incident", "rollback", "stop", "stall")
_TIMEOUT_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """What to call, and when.

    Attributes:
        command: a command line, run without a shell; it gets the alert as JSON on its standard input, and as
            `NANTRAP_ALERT_EVENT` and `NANTRAP_ALERT_TEXT`.
        webhook: an address that takes the alert as JSON.
        slack: an incoming webhook of Slack (or of Mattermost, Discord with `/slack`, ...).
        on: the events that count.
        every: of each event at most one alert within this many seconds; a stop is always sent.
        stalled_after: seconds without a step that count as a stall; 0 for never.
    """

    command: str | Sequence[str] | None = None
    webhook: str | None = field(default=None, repr=False)
    slack: str | None = field(default=None, repr=False)
    on: Collection[str] = EVENTS
    every: float = 300.0
    stalled_after: float = 1800.0

    def __post_init__(self) -> None:
        """Refuse what cannot be right, by the name of the field."""
        unknown = [event for event in self.on if event not in EVENTS]
        if unknown:
            raise UsageError(f"Alerts(on=...): {unknown[0]!r} is not an event; choose from {', '.join(EVENTS)}")
        if not (self.command or self.webhook or self.slack):
            raise UsageError("Alerts(): give a command, a webhook or a slack address")
        for name in ("webhook", "slack"):
            address = getattr(self, name)
            if address and (urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname):
                raise UsageError(f"Alerts({name}=...): expected an address that begins with https:// or http://")
        if self.every < 0 or self.stalled_after < 0:
            raise UsageError("Alerts(every=..., stalled_after=...): 0 seconds or more")


def alerts_from_text(specs: Sequence[str], *, environment: Mapping[str, str], **options: Any) -> Alerts:
    """The alerts of a command line: `command:notify-send nantrap`, `slack:NAME`, `webhook:NAME`.

    NAME is an environment variable that holds the address: a command line can be read by every user of the machine, and
    is written into `run.json`.
    """
    found: dict[str, Any] = {}
    for spec in specs:
        kind, colon, rest = spec.partition(":")
        if kind not in ("command", "webhook", "slack") or not colon or not rest.strip():
            raise UsageError("--alert: expected command:COMMAND, slack:VARIABLE or webhook:VARIABLE")
        if kind == "command":
            found[kind] = rest
            continue
        if "/" in rest:
            raise UsageError(
                f"--alert {kind}: give the name of an environment variable that holds the address, not the address: "
                "the address is a secret, and a command line can be read by others"
            )
        if not environment.get(rest):
            raise UsageError(f"--alert {kind}:{rest}: the environment variable {rest} is not set")
        found[kind] = environment[rest]
    return Alerts(**found, **options)


class Alerter:
    """Sends alerts. Holds when each event was last sent, how many were left out, and when the last step was.

    Args:
        alerts: what to call, and when.
        run: the name of the run, for the message.
        clock: seconds that only go forward, for tests.
    """

    def __init__(self, alerts: Alerts, *, run: str = "", clock: Any = time.monotonic) -> None:
        self._alerts = alerts
        self._run = run
        self._clock = clock
        self._sent: dict[str, float] = {}
        self._held: dict[str, int] = {}
        self._beat = clock()
        self._stalled = False
        self._step: int | None = None
        self._failed: set[str] = set()
        self._background = BackgroundQueue(self._send)
        self._end = threading.Event()
        if alerts.stalled_after and "stall" in alerts.on:
            pause = max(0.05, min(30.0, alerts.stalled_after / 4))
            threading.Thread(target=self._watch, args=(pause,), name="nantrap-stall", daemon=True).start()

    def append(self, line: Mapping[str, Any]) -> None:
        """A line of the journal: the run is alive."""
        self._beat = self._clock()
        self._stalled = False
        step = line.get("step")
        self._step = step if isinstance(step, int) else self._step

    def incident(self, incident: Incident, *, headline: str, text: str = "") -> None:
        """An incident; its action decides which event it is."""
        action = str(incident.action)
        event = action if action in ("rollback", "stop") else "incident"
        cause = incident.causes[0] if incident.causes else None
        self.notify(
            event, headline, step=incident.step, rank=incident.rank, action=action, phase=incident.phase,
            module=incident.module, cause=None if cause is None else cause.slug,
            code=None if cause is None else cause.code,
            bundle=incident.bundle,
        )  # fmt: skip

    def notify(self, event: str, text: str, **facts: Any) -> None:
        """Send an alert unless one of its kind was sent recently."""
        if event not in self._alerts.on:
            return
        now = self._clock()
        last = self._sent.get(event)
        if last is not None and now - last < self._alerts.every and event != "stop":
            self._held[event] = self._held.get(event, 0) + 1
            return
        self._sent[event] = now
        held = self._held.pop(event, 0)
        document = {
            "schema": "nantrap.alert/1",
            "event": event,
            "run": self._run,
            "text": text,
            **facts,
            "held_back": held,
        }
        self._background.put(document, matters=True)

    def check_stall(self) -> None:
        """Send an alert if there was no step for a long time; once for each stall."""
        quiet = self._clock() - self._beat
        if quiet > self._alerts.stalled_after and not self._stalled:
            self._stalled = True
            long = f"{quiet / 60:.0f} min" if quiet >= 120 else f"{quiet:.0f} s"
            since = "" if self._step is None else f", since step {self._step:,}"
            self.notify("stall", f"no step for {long}{since}", step=self._step, seconds=round(quiet))

    def close(self, *, timeout: float = 20.0) -> None:
        """Send what waits. May be called again."""
        self._end.set()
        self._background.close(timeout=timeout)

    def _watch(self, pause: float) -> None:
        while not self._end.wait(pause):
            self.check_stall()

    def _send(self, document: dict[str, Any]) -> None:
        """Call what was configured. The first failure of each kind gives a warning, and none stops the run."""
        alerts = self._alerts
        held = document["held_back"]
        more = f" (and {held:,} more since the last alert)" if held else ""
        run = f" {document['run']}" if document["run"] else ""
        text = f"nantrap: {document['event']}{run}: {document['text']}{more}"
        calls: dict[str, Callable[[], None]] = {
            "command": lambda: _run_command(alerts.command or "", document, text),
            "webhook": lambda: _post(alerts.webhook or "", document),
            "slack": lambda: _post(alerts.slack or "", {"text": text[:3000]}),
        }
        for name, call in calls.items():
            if not getattr(alerts, name):
                continue
            try:
                call()
            except Exception as error:  # a failing alert must not stop the run
                if name not in self._failed:
                    self._failed.add(name)
                    warnings.warn(f"nantrap: alert by {name} failed: {_words(error)}", RuntimeWarning, stacklevel=2)


def _run_command(command: str | Sequence[str], document: Mapping[str, Any], text: str) -> None:
    arguments = shlex.split(command) if isinstance(command, str) else list(command)
    environment = {**os.environ, "NANTRAP_ALERT_EVENT": str(document["event"]), "NANTRAP_ALERT_TEXT": text}
    subprocess.run(
        arguments, input=json.dumps(document), text=True, env=environment, timeout=_TIMEOUT_SECONDS, check=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _post(address: str, document: Mapping[str, Any]) -> None:
    """Send a document to an address as JSON, and raise what goes wrong."""
    import urllib.error  # only for a run that has something to send
    import urllib.request

    request = urllib.request.Request(
        address, data=json.dumps(document).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise


def _words(error: Exception) -> str:
    """What went wrong, without the address: that is a secret."""
    import urllib.error

    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code}"
    if isinstance(error, urllib.error.URLError):
        return f"no connection ({type(error.reason).__name__})"
    if isinstance(error, subprocess.CalledProcessError):
        return f"the command ended with code {error.returncode}"
    if isinstance(error, FileNotFoundError):
        return "the command was not found"
    return type(error).__name__
