"""The pages in a real browser: they load, they move with the run, nothing is blocked, axe has no complaint."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nantrap.report.writing import write_incident_report, write_run_report
from report.runs import EVIL, MASKED, line, skipped, usual_run, write_run

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core/axe.min.js"))
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


@contextlib.contextmanager
def serving(root: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "nantrap", "serve", str(root), "--port", "0", "--no-cache"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            yield address.rstrip("/")
        finally:
            process.terminate()
            process.wait(timeout=20)


@contextlib.contextmanager
def opened(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """A page on which nothing may be written to the console, and nothing may be blocked or missing."""
    page = browser.new_page(**options)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("requestfailed", lambda request: said.append(request.url) if "/events" not in request.url else None)
    page.goto(address)
    yield page
    assert said == []
    page.close()


def complaints(browser: Any, address: str, **options: Any) -> list[str]:
    """What axe says about a page. The policy of the page forbids other scripts, so it is set aside for this visit."""
    if not AXE.is_file():
        pytest.skip(f"no axe-core at {AXE}: npm install axe-core, or set AXE_CORE to axe.min.js")
    context = browser.new_context(bypass_csp=True, **options)
    page = context.new_page()
    page.goto(address)
    page.add_script_tag(content=AXE.read_text())
    found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice']})")
    context.close()
    return [f"{v['id']}: {v['nodes'][0]['html'][:120]}" for v in found["violations"]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return usual_run(tmp_path_factory.mktemp("runs") / "exp1")


def test_the_live_page_moves_when_a_step_is_written(browser: Any, run: Path) -> None:
    with serving(run.parent) as address, opened(browser, address) as page:
        playwright.expect(page.locator("#connection")).to_have_text("live")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("/run/"))
        playwright.expect(page.locator("#connection")).to_have_text("live")
        playwright.expect(page.locator("#now-step")).to_have_text("299")
        with (run / "journal-r0.jsonl").open("a") as file:
            file.write(json.dumps(line(300, 0.125)) + "\n" + json.dumps(skipped(301)) + "\n")
            file.write(json.dumps(line(302, 0.0625)) + "\n")
        playwright.expect(page.locator("#now-step")).to_have_text("302")
        playwright.expect(page.locator("#now-loss")).to_have_text("0.0625")
        assert "step 302 · nantrap live" in page.title(), "a tab in the background shows it too"
        playwright.expect(page.locator("#feed li").first).to_contain_text("NT203 skipped")
        playwright.expect(page.locator("figure").first).to_contain_text("now 0.0625")
        page.keyboard.press("w")
        playwright.expect(page.locator("#range")).to_contain_text("steps 0 to 302")
        plot = page.locator(".plot").first
        plot.focus()
        page.keyboard.press("ArrowLeft")
        playwright.expect(page.locator("figure").first).to_contain_text("step 301:")
        box = plot.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 20)
        page.mouse.up()
        playwright.expect(page.locator("#range")).not_to_contain_text("steps 0 to")
        page.keyboard.press("l")
        playwright.expect(page.locator("figure").first).to_contain_text("linear scale")
        page.keyboard.press("p")
        playwright.expect(page.locator("#connection")).to_have_text("paused")


def test_pages_read_without_a_script(browser: Any, run: Path) -> None:
    with serving(run.parent) as address:
        context = browser.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(address)
        page.get_by_role("link", name="exp1").click()
        assert page.locator("#charts figure").count() >= 4
        page.get_by_role("link", name="run report").click()
        assert "steps" in page.locator("h1").inner_text()
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_complaint(browser: Any, run: Path, scheme: str) -> None:
    reports = [write_run_report(run), write_incident_report(run / "incidents" / "000007-r0")]
    for report in reports:
        assert report is not None
        assert complaints(browser, report.as_uri(), color_scheme=scheme) == []
    with serving(run.parent) as address:
        assert complaints(browser, address, color_scheme=scheme) == []
        page = browser.new_page()
        page.goto(address)
        page.get_by_role("link", name="exp1").click()
        page.wait_for_url(re.compile("/run/"))
        inside = page.url
        page.close()
        assert complaints(browser, inside, color_scheme=scheme) == []


@pytest.mark.parametrize("width", [1280, 420])
def test_reports_open_without_a_word_on_the_console_and_fit_the_screen(browser: Any, run: Path, width: int) -> None:
    reports = [write_run_report(run), write_incident_report(run / "incidents" / "000007-r0")]
    for report in reports:
        assert report is not None
        with opened(browser, report.as_uri(), viewport={"width": width, "height": 900}) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate("getComputedStyle(document.querySelector('.badge')).borderRadius") == "4px", "styled"


def test_on_a_phone_a_long_name_does_not_cover_the_state(browser: Any, tmp_path: Path) -> None:
    usual_run(tmp_path / "a-folder-with-a-long-name" / "and-a-run-with-a-name-that-is-longer-than-the-screen")
    with serving(tmp_path) as address, opened(browser, address, viewport={"width": 420, "height": 800}) as page:
        name, state = (page.locator(f"#rows .{cell}").first.bounding_box() for cell in ("c-run", "c-state"))
        assert name["y"] + name["height"] <= state["y"] + 1
        assert name["x"] + name["width"] <= 420
        assert page.locator("#rows .c-run a").first.bounding_box()["width"] <= name["width"]


def test_on_paper_nothing_is_cut_off(browser: Any, tmp_path: Path) -> None:
    """What scrolls on a screen is whole in print: 718 pixels are the width of a sheet without its margins."""
    long = "encoder.layers.0.before_attention.linear"
    found = tuple(replace(one, name=f"{long}.{one.name}") for one in MASKED.findings)
    run = write_run(tmp_path / "run", [line(0), skipped(7)], incidents=(replace(MASKED, findings=found),))
    for report in (write_run_report(run), write_incident_report(run / "incidents" / "000007-r0")):
        assert report is not None
        with opened(browser, report.as_uri(), viewport={"width": 718, "height": 1000}) as page:
            page.emulate_media(media="print")
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            wide = "[...document.querySelectorAll('main *')].filter(one => one.getBoundingClientRect().right > 719)"
            assert page.evaluate(f"{wide}.map(one => one.outerHTML.slice(0, 80))") == []


def test_a_list_with_long_and_hostile_names_fits_the_screen_and_shows_them_as_text(
    browser: Any, tmp_path: Path
) -> None:
    """As the server wrote it and as the script writes it again."""
    write_run(tmp_path / ("a_long_name_" * 16), [line(step) for step in range(4)])
    write_run(tmp_path / "hostile", [line(0), skipped(1, cause=EVIL), line(2, terms={EVIL: 1.0})])
    with serving(tmp_path) as address, opened(browser, address, viewport={"width": 1280, "height": 800}) as page:
        playwright.expect(page.locator("#connection")).to_have_text("live")
        with (tmp_path / "hostile" / "journal-r0.jsonl").open("a") as file:
            file.write(json.dumps(line(3, 0.25)) + "\n")
        playwright.expect(page.locator("#rows")).to_contain_text("0.25")
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        assert "\u202e" not in page.locator("#rows").inner_text()
        assert r"\u202e" in page.locator("#rows").inner_text()
        page.get_by_role("link", name="hostile").click()
        playwright.expect(page.locator("#charts figure").nth(3)).to_contain_text(r"\u202e")
        assert "\u202e" not in page.locator("body").inner_text()


def test_a_zoom_into_the_past_is_not_called_now(browser: Any, run: Path) -> None:
    with serving(run) as address, opened(browser, address) as page:
        page.get_by_role("link", name="exp1").click()
        playwright.expect(page.locator("#range")).to_contain_text("every step")
        playwright.expect(page.locator("#connection")).to_have_text("live")
        page.keyboard.press("p")  # nothing is drawn again while the mouse moves
        playwright.expect(page.locator("#connection")).to_have_text("paused")
        caption = page.locator("figure .now").first
        playwright.expect(caption).to_contain_text("now ")
        box = page.locator(".plot").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 20)
        page.mouse.up()
        playwright.expect(page.locator("#range")).not_to_contain_text("steps 0 to")
        page.mouse.move(1, 1)
        playwright.expect(caption).to_contain_text(re.compile(r"^step \d+: "))


def test_the_built_site_is_searched_as_files_and_asks_no_network(browser: Any) -> None:
    site = ROOT / "build" / "site"
    if not (site / "search.js").is_file():
        pytest.skip("the site is not built: make docs")
    context = browser.new_context()
    context.route(re.compile("^https?:"), lambda route: route.fulfill(status=500))
    asked: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url) if request.url.startswith("http") else None)
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox").or_(page.get_by_role("searchbox")).or_(page.locator("input:visible")).first
    field.press_sequentially("softmax masked", delay=40)
    playwright.expect(page.get_by_text(re.compile(r"^\d+ results")).first).to_be_visible()
    playwright.expect(page.locator("mark").filter(has_text=re.compile("softmax", re.IGNORECASE)).first).to_be_visible()
    assert asked == []
    context.close()
