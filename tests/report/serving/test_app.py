"""The live server as others ask it: pages, data, and everything that it must refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import numpy as np
import pytest
import torch

pytest.importorskip("starlette", reason="needs nantrap[serve]")
pytest.importorskip("httpx2", reason="the client of starlette's tests needs httpx2")

from starlette.testclient import TestClient

from nantrap.cli import main
from nantrap.report.serving.access import is_loopback
from nantrap.report.serving.app import LiveServer
from nantrap.report.serving.index import Index
from report.runs import EVIL, HOSTILE, line, skipped, usual_run, write_run


def served(root: Path, token: str | None = None) -> TestClient:
    index = Index(root)
    index.discover()
    index.scan()
    app = LiveServer(index).application(hosts=("127.0.0.1", "localhost", "::1"), token=token)
    return TestClient(cast(Any, app), base_url="http://127.0.0.1:8765", follow_redirects=False)


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    usual_run(tmp_path / "exp1")
    write_run(tmp_path / "exp2", [line(step) for step in range(10)])
    return served(tmp_path)


def ident(client: TestClient, name: str = "exp1") -> str:
    runs = client.get("/api/runs").json()["runs"]
    return str(next(run["id"] for run in runs if run["name"] == name))


def test_the_list(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "2 runs: " in page.text
    assert "exp1" in page.text
    assert "fp16_forward_overflow, step 42" in page.text
    assert [run["name"] for run in client.get("/api/runs?q=exp2").json()["runs"]] == ["exp2"]
    assert "No run matches." in client.get("/?q=nothing").text


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    assert "There is no run in this folder yet." in served(tmp_path).get("/").text


def test_a_run_without_a_step_has_no_loss_and_none_is_called_nan(tmp_path: Path) -> None:
    write_run(tmp_path / "empty", [], info={"model": "Net"})
    client = served(tmp_path)
    for address in ("/", f"/run/{ident(client, 'empty')}"):
        page = client.get(address).text.partition("<script>")[0]
        assert "no step yet" in page
        assert "NaN<" not in page
        assert "100 %" not in page


def test_one_run_its_report_and_its_incidents(client: TestClient) -> None:
    address = f"/run/{ident(client)}"
    page = client.get(address)
    assert page.status_code == 200
    assert "NT401" in page.text
    assert f"{address}/incident/000007-r0" in page.text
    assert "300 steps, 296 applied (98.7\u00a0%)" in client.get(f"{address}/report").text
    incident = client.get(f"{address}/incident/000007-r0")
    assert incident.status_code == 200
    assert "proven by trial 1" in incident.text


def test_events_are_grouped_by_cause(tmp_path: Path) -> None:
    lines = [skipped(step, "log_of_zero" if step % 2 else "bad_input_data") for step in range(4, 250)]
    write_run(tmp_path / "exp1", [*(line(step) for step in range(4)), *lines])
    client = served(tmp_path)
    page = client.get(f"/run/{ident(client)}").text
    assert page.count('<li data-step="') == 2
    assert 'NT201</b> skipped<span class="times"> 123 times since step 5</span>' in page


def test_series_of_a_short_and_of_a_long_range(tmp_path: Path) -> None:
    write_run(tmp_path / "long", [line(step, float(step)) for step in range(6000)])
    client = served(tmp_path)
    address = f"/api/run/{ident(client, 'long')}/series"
    short = client.get(f"{address}?first=100&last=104").json()
    assert [entry[:3] for entry in short["columns"]["loss"]] == [[s, float(s), float(s)] for s in range(100, 105)]
    assert client.get(f"{address}?first=0&last=5999").json()["width"] == 256
    assert client.get(address).json()["last"] == 5999
    for wrong in ("first=x", "first=9&last=3"):
        assert client.get(f"{address}?{wrong}").status_code == 400


@pytest.mark.parametrize(
    "path",
    [
        "/run/nothing", "/run/nothing/report", "/run/nothing/events", "/api/run/nothing/series",
        "/run/..%2f..%2fetc", "/run/%2e%2e/report", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/run.json",
    ],
)  # fmt: skip
def test_no_address_becomes_a_path(path: str, client: TestClient) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("name", ["../000007-r0", "%2e%2e", "..%2f..%2f..%2fetc%2fpasswd", "000007-r0%2f..", "x\x00y"])
def test_no_incident_leads_out_of_its_run(name: str, client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "exp1" / "incident.json").write_text("secret")
    answer = client.get(f"/run/{ident(client)}/incident/{quote(name, safe='%')}")
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_a_link_to_elsewhere_is_not_followed(tmp_path: Path) -> None:
    outside = write_run(tmp_path / "outside", [line(0)])
    root = tmp_path / "runs"
    root.mkdir()
    (root / "link").symlink_to(outside, target_is_directory=True)
    assert served(root).get("/api/runs").json()["runs"] == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_it_is_read_only(method: str, client: TestClient) -> None:
    assert client.request(method, "/").status_code == 405


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "localhost.evil",
        "127.0.0.1:8765@evil.example", "127.0.0.1:", "[::1]evil.example", "[::1", "localhost/evil", "localhost:port",
    ],
)  # fmt: skip
def test_other_host_names_are_refused(host: str, client: TestClient) -> None:
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == 421
    assert "exp1" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8765", "localhost:8765", "LOCALHOST", "[::1]:8765"])
def test_its_own_names_are_answered(host: str, client: TestClient) -> None:
    assert client.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
)
def test_other_sites_are_refused(headers: dict[str, str], client: TestClient) -> None:
    assert client.get("/api/runs", headers=headers).status_code == 403


def test_a_link_from_another_site_opens_the_page(client: TestClient) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=headers).status_code == 200
    assert client.get("/", headers={"origin": "http://127.0.0.1:8765"}).status_code == 200


def test_the_headers_of_every_answer(client: TestClient) -> None:
    for path in ("/", "/api/runs", "/nothing"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers
    policy = client.get("/").text.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    usual_run(tmp_path / "exp1")
    client = served(tmp_path, token="correct-horse")
    for path in ("/", "/metrics", "/api/runs", "/healthz", "/?token=wrong"):
        answer = client.get(path)
        assert answer.status_code == 401
        assert "exp1" not in answer.text
    assert client.get("/metrics", headers={"authorization": "Bearer correct-horse"}).status_code == 200
    assert client.get("/metrics", headers={"authorization": "Bearer wrong"}).status_code == 401
    answer = client.get("http://127.0.0.1:8765//evil.example/?token=correct-horse")
    assert answer.headers["location"] == "/evil.example/", "never to another site"
    answer = client.get("/?token=correct-horse")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/").status_code == 200, "the cookie is enough from then on"


def test_hostile_names_are_text_everywhere(tmp_path: Path) -> None:
    folder = tmp_path / "a<script>alert(1)<"
    lines = [line(0, terms={EVIL: 1.0}), skipped(3, cause=EVIL), line(4, watch={EVIL: 2.0})]
    write_run(folder, lines, incidents=(HOSTILE,), info={"model": EVIL})
    client = served(tmp_path)
    name = ident(client, folder.name)
    pages = ["/", f"/run/{name}", f"/run/{name}/report", f"/run/{name}/incident/000003-r0"]
    for path in pages:
        text = client.get(path).text
        assert "<script>alert" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
    metrics = client.get("/metrics").text
    assert all(text.startswith(("#", "nantrap_")) for text in metrics.splitlines())


def test_metrics(client: TestClient) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'nantrap_step{run="exp1"} 299' in lines
    assert 'nantrap_applied{run="exp1"} 296' in lines
    assert 'nantrap_incidents_by_cause{run="exp1",cause="softmax_fully_masked_row"} 3' in lines
    assert sum(text.startswith('nantrap_state{run="exp2"') and text.endswith(" 1.0") for text in lines) == 1


def test_results_in_a_run_folder_are_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "exp1", [line(0)])
    (run / "audit.json").write_text(
        '{"schema": "nantrap.audit/1", "files": [{"path": "step-5.pt", '
        '"findings": [{"code": "NT901", "message": "NaN"}]}]}'
    )
    client = served(tmp_path)
    page = client.get(f"/run/{ident(client)}").text
    assert "Checkpoint audit" in page
    assert "step-5.pt: NT901 NaN" in page


def test_what_audit_and_data_print_is_shown_below_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real documents of both commands, saved in the folder of all runs."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "exp1", [line(0)])
    torch.save({"weight": torch.tensor([1.0, float("nan")])}, "step-5.pt")
    np.savez("train.npz", x=np.array([[0.5], [float("nan")]]))
    for command, file in ((["audit", "step-5.pt"], "audit.json"), (["data", "train.npz"], "data.json")):
        assert main([*command, "--json"]) == 1
        (tmp_path / "runs" / file).write_text(capsys.readouterr().out)
    page = served(tmp_path / "runs").get("/").text
    assert "Checkpoint audit" in page
    assert "step-5.pt: NT901 weight: 1 of 2 values is NaN" in page
    assert "Data check" in page
    assert "NT151 train.npz, x: 1 sample with 1 NaN: 1" in page
    assert page.count("✖ 1 finding<") == 2


def test_loopback_addresses() -> None:
    assert [host for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9") if not is_loopback(host)] == []
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nothing/here"], "no such folder"),
        ([".", "--port", "70000"], "--port 70000: from 0 to 65535"),
        ([".", "--token", "short"], "--token: at least 8 characters"),
        ([".", "--host", "no.such.host.invalid"], "cannot be used"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *arguments, "--no-cache"]) == 2
    assert message in capsys.readouterr().err


def test_the_report_leads_to_the_incidents_of_another_optimizer(tmp_path: Path) -> None:
    """It has a journal of its own, and so a page of its own."""
    write_run(tmp_path / "gan", [line(step) for step in range(10)])
    usual_run(tmp_path / "gan" / "optimizer-2")
    client = served(tmp_path)
    assert sorted(run["name"] for run in client.get("/api/runs").json()["runs"]) == ["gan", "gan/optimizer-2"]
    page = client.get(f"/run/{ident(client, 'gan')}/report").text
    assert "310 steps, 306 applied" in page
    address = f"/run/{ident(client, 'gan/optimizer-2')}/incident/000007-r0"
    assert address in page
    assert client.get(address).status_code == 200
    main(["report", str(tmp_path / "gan")])
    written = (tmp_path / "gan" / "report.html").read_text(encoding="utf-8")
    assert 'href="optimizer-2/incidents/000007-r0/report.html"' in written
