"""The report in a real browser: hover, toggle, switch axes, without a network and on a small screen."""

from __future__ import annotations

import re
import shutil

import pytest

from fedpaq.experiments import FIGURES, judge, save_report
from small_figure import planted

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    figure = FIGURES["mnist"]
    curves = {setting: planted(setting, 0.98**setting.local_steps, noise=0.03) for setting in figure.settings}
    path = tmp_path_factory.mktemp("report") / "report.html"
    save_report([(figure, curves)], judge(figure, curves), path)
    return path


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser, page_path):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    opened = context.new_page()
    opened.complaints = []
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("console", lambda message: opened.complaints.append(message.text) if message.type == "error" else None)
    opened.on("request", lambda request: opened.complaints.append(request.url) if "file:" not in request.url else None)
    opened.goto(page_path.as_uri())
    opened.wait_for_selector("#mnist-methods .legend")
    yield opened
    assert opened.complaints == []
    context.close()


def press(page, button):
    page.click(f"#controls b:has-text('{button}')")


def axis_title(page, panel="levels"):
    return page.text_content(f"#mnist-{panel} .xtitle")


def first_x(page, panel="levels"):
    return page.evaluate(f"Array.from(document.getElementById('mnist-{panel}').data[1].x)")


def test_the_page_opens_offline_with_verdicts_on_top_and_four_plots(page):
    assert page.locator(".plot .main-svg").count() >= 4
    assert page.locator("#verdicts tbody tr:not(.group)").count() == 10
    above = page.evaluate(
        "document.getElementById('verdicts').getBoundingClientRect().top <"
        " document.getElementById('figures').getBoundingClientRect().top"
    )
    assert above and re.search(
        r"Elias bound: \d+ hold, \d+ do not, \d+ tied, \d+ undecided", page.text_content("#score")
    )


def test_the_x_axis_switches_between_time_rounds_and_bits(page):
    assert axis_title(page) == "modelled time (mean gradient times)"
    press(page, "rounds")
    page.wait_for_function("document.querySelector('#mnist-levels .xtitle').textContent.startsWith('rounds')")
    assert first_x(page)[:3] == [1, 2, 3]
    press(page, "uploaded bits")
    page.wait_for_function("document.querySelector('#mnist-levels .xtitle').textContent.startsWith('uploaded')")
    assert first_x(page)[0] == 8 * 40 * 25


def test_switching_the_count_changes_time_and_bits_but_not_rounds(page):
    time = first_x(page)
    press(page, "fixed width")
    assert first_x(page) != time
    press(page, "uploaded bits")
    assert first_x(page)[0] == 25 * (1000 * 2 + 32)  # s = 1: a sign and one bit a coordinate, and the norm
    press(page, "rounds")
    assert first_x(page)[:2] == [1, 2]


def test_a_click_in_the_legend_hides_a_curve_and_its_band_through_a_switch(page):
    page.locator("#mnist-levels .legendtoggle").first.click()
    hidden = "document.getElementById('mnist-levels').data.slice(0, 2).every(t => t.visible === 'legendonly')"
    page.wait_for_function(hidden)
    press(page, "rounds")
    assert page.evaluate(hidden)
    page.locator("#mnist-levels .legendtoggle").first.click()
    page.wait_for_function("document.getElementById('mnist-levels').data[1].visible === true")


def test_hovering_names_the_curve_its_round_and_loss(page):
    page.locator("#mnist-levels").scroll_into_view_if_needed()
    point = page.locator("#mnist-levels .points path").first.bounding_box()
    page.mouse.move(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    page.wait_for_selector("#mnist-levels .hovertext")
    text = page.text_content("#mnist-levels .hoverlayer")
    assert "round" in text and "loss" in text and "step size" in text


def test_a_verdict_opens_to_its_numbers(page):
    page.locator("#verdicts details summary").nth(3).click()
    assert "no quantization / s = 1 to level 1 of 5, loss" in page.locator("#verdicts details").nth(3).inner_text()


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_wider_than_the_screen(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.locator(".plot").evaluate_all("plots => plots.map(plot => plot.getBoundingClientRect().width)")
    assert all(300 <= box <= width for box in boxes)
