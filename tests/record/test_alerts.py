"""Alerts on loopback: what is sent, how often, and that the address stays secret."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nantrap import Incident
from nantrap.errors import UsageError
from nantrap.incident import Action
from nantrap.record.alerts import Alerter, Alerts, alerts_from_text


class Received:
    """A server on loopback that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.status = 200
        received = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.got.append((self.path, json.loads(body)))
                self.send_response(received.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/{path}"


@pytest.fixture
def server() -> Iterator[Received]:
    received = Received()
    yield received
    received.server.shutdown()
    received.thread.join(10)
    received.server.server_close()


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def incident(step: int, action: Action = Action.SKIP) -> Incident:
    return Incident(step=step, rank=0, phase="forward", module="attn", op="aten._softmax", action=action)


def test_a_webhook_and_slack(server: Received) -> None:
    alerts = Alerts(webhook=server.address("hook"), slack=server.address("slack"), stalled_after=0)
    alerter = Alerter(alerts, run="exp1")
    alerter.incident(incident(7), headline="step 7: softmax gave NaN")
    alerter.close()
    (generic, document), (slack, message) = server.got
    assert (generic, slack) == ("/hook", "/slack")
    assert (document["schema"], document["event"], document["step"], document["run"]) == (
        "nantrap.alert/1", "incident", 7, "exp1",
    )  # fmt: skip
    assert message == {"text": "nantrap: incident exp1: step 7: softmax gave NaN"}


def test_many_alerts_become_few_and_a_stop_is_always_sent(server: Received) -> None:
    clock = Clock()
    alerter = Alerter(Alerts(webhook=server.address("x"), every=60, stalled_after=0), clock=clock)
    for step in range(100):
        alerter.incident(incident(step), headline=f"step {step}")
    alerter.incident(incident(100, Action.ROLLBACK), headline="back")
    alerter.incident(incident(101, Action.STOP), headline="stop")
    alerter.incident(incident(102, Action.STOP), headline="stop")
    clock.now = 61
    alerter.incident(incident(103), headline="step 103")
    alerter.close()
    assert [(d["event"], d["step"], d["held_back"]) for _, d in server.got] == [
        ("incident", 0, 0), ("rollback", 100, 0), ("stop", 101, 0), ("stop", 102, 0), ("incident", 103, 99),
    ]  # fmt: skip


def test_only_the_events_asked_for(server: Received) -> None:
    alerter = Alerter(Alerts(webhook=server.address("x"), on=("stop",), stalled_after=0))
    alerter.incident(incident(1), headline="a")
    alerter.incident(incident(2, Action.STOP), headline="b")
    alerter.close()
    assert [document["event"] for _, document in server.got] == ["stop"]


def test_a_stall_is_reported_once_and_again_after_the_run_continued(server: Received) -> None:
    clock = Clock()
    alerter = Alerter(Alerts(webhook=server.address("x"), every=0, stalled_after=3600), clock=clock)
    for now, step in ((3000, False), (3700, False), (7400, False), (7500, True), (12_000, False)):
        clock.now = now
        if step:
            alerter.append({"step": 1204})
        alerter.check_stall()
    alerter.close()
    said = ["no step for 62 min", "no step for 75 min, since step 1,204"]
    assert [document["text"] for _, document in server.got] == said
    assert [document["step"] for _, document in server.got] == [None, 1204]


def test_a_short_stall_is_told_in_seconds(server: Received) -> None:
    clock = Clock()
    alerter = Alerter(Alerts(webhook=server.address("x"), every=0, stalled_after=10), clock=clock)
    clock.now = 14
    alerter.check_stall()
    alerter.close()
    assert [document["text"] for _, document in server.got] == ["no step for 14 s"]


def test_a_command_gets_the_alert(tmp_path: Path) -> None:
    script = tmp_path / "note.py"
    script.write_text(
        "import json, os, sys\n"
        "got = [json.load(sys.stdin), os.environ['NANTRAP_ALERT_TEXT']]\n"
        f"json.dump(got, open({str(tmp_path / 'got.json')!r}, 'w'))\n"
    )
    alerter = Alerter(Alerts(command=[sys.executable, str(script)], stalled_after=0), run="exp1")
    alerter.incident(incident(7), headline="words; $(touch /tmp/never) `x`")
    alerter.close()
    document, text = json.loads((tmp_path / "got.json").read_text())
    assert document["step"] == 7
    assert text == "nantrap: incident exp1: words; $(touch /tmp/never) `x`"


def test_what_fails_is_reported_once_without_the_address(server: Received) -> None:
    server.status = 403
    alerts = Alerts(webhook=server.address("secret-token"), command="no-such-command-here", every=0, stalled_after=0)
    assert "secret" not in repr(alerts)
    alerter = Alerter(alerts)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            alerter.incident(incident(step), headline="a")
        alerter.close()
    assert sorted(str(warning.message) for warning in caught) == [
        "nantrap: alert by command failed: the command was not found",
        "nantrap: alert by webhook failed: the server answered 403",
    ]


def test_the_command_line_takes_names_of_variables_and_no_addresses() -> None:
    environment = {"HOOK": "https://hooks.example/secret"}
    alerts = alerts_from_text(["slack:HOOK", "command:notify-send nantrap"], environment=environment)
    assert (alerts.slack, alerts.command) == ("https://hooks.example/secret", "notify-send nantrap")
    for spec, message in (
        ("slack:https://hooks.example/secret", "give the name of an environment variable"),
        ("webhook:NOTHING", "the environment variable NOTHING is not set"),
        ("mail:me", "expected command:COMMAND, slack:VARIABLE or webhook:VARIABLE"),
    ):
        with pytest.raises(UsageError, match=message):
            alerts_from_text([spec], environment=environment)
    with pytest.raises(UsageError, match="an address that begins with https"):
        Alerts(webhook="file:///etc/passwd")
    with pytest.raises(UsageError, match="give a command, a webhook or a slack address"):
        Alerts()
