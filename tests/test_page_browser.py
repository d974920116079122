"""A report in a real browser: nothing from the network, nothing executed, nothing cut off."""

import base64
import dataclasses
import io
import json
import shutil

import numpy as np
import pytest
from report_runs import ATTACK, HOSTILE, METHODS, hostile_analysis

from hmcl_jax.report.figures.draw import draw_all
from hmcl_jax.report.page import report_page

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="no Chromium and chromedriver on this machine"
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report of runs whose tasks, classes and methods have hostile names."""
    folder = tmp_path_factory.mktemp("page")
    found = hostile_analysis(folder / "runs")
    jpeg = io.BytesIO()
    Image.new("RGB", (32, 32), "teal").save(jpeg, "JPEG")
    photo = {"thumbnail": jpeg.getvalue()}
    starts = tuple(dataclasses.replace(start, **photo) for start in found.starts)
    found = dataclasses.replace(found, starts=starts, warnings=HOSTILE)
    drawings = draw_all(found, folder / "figures", [])
    path = folder / 'a "report" #1 ?.html'
    path.write_text(report_page(found, drawings), "utf8")
    return path


@pytest.fixture(scope="module")
def browser(page, tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.get("about:blank")
        driver.get_log("performance")
        driver.get(page.as_uri())
        yield driver
    finally:
        driver.quit()


def resize(browser, width, media="screen", scheme="light"):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def settle(browser):
    """Waits until what was scrolled or resized is drawn, and its events are over."""
    browser.execute_async_script(
        "const done = arguments[0];"
        "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0)))"
    )


def test_nothing_is_asked_of_the_network_and_nothing_is_executed(browser, page):
    log = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"] for m in log if m["method"] == "Network.requestWillBeSent"]
    # The page itself is asked for, so the log works.
    assert {r["url"] for r in asked if not r["url"].startswith("data:")} == {page.as_uri()}
    assert browser.get_log("browser") == []  # no errors, no breach of the policy
    assert browser.execute_script("return window.attacked") is None
    assert browser.execute_script("return document.scripts.length") == 1
    # The log would tell, and the policy holds.
    browser.execute_script(
        f"const s = document.createElement('script'); s.textContent = '{ATTACK}';"
        "document.body.append(s); s.remove()"
    )
    assert "Content Security Policy" in browser.get_log("browser")[0]["message"]
    assert browser.execute_script("return window.attacked") is None


def test_hostile_names_are_shown_as_text(browser):
    text = browser.execute_script("return document.body.textContent")
    for name in (*HOSTILE, METHODS[2]):
        assert name.replace("\ud800", "\ufffd").replace("\x00", "\ufffd") in text
    assert browser.title.startswith("<img src=x")
    widths = browser.execute_script("return [...document.images].map(i => i.naturalWidth)")
    drawings = [width for width in widths if width != 32]  # the width of the photos
    assert len(widths) > len(drawings) >= 7
    assert min(drawings) > 400


COLUMN = """
const table = [...document.querySelectorAll('table.sortable')].find(
  t => t.caption.textContent.startsWith(arguments[0]));
return [...table.tBodies[0].rows].map(r => r.children[arguments[1]].dataset.value ??
  r.children[arguments[1]].textContent)
"""


def test_tables_sort_by_click_and_by_keyboard(browser):
    resize(browser, 1400)
    caption = "Scores at the end"
    tables = browser.find_elements(By.CSS_SELECTOR, "table.sortable")
    scores = next(t for t in tables if t.text.startswith(caption))
    heads = scores.find_elements(By.CSS_SELECTOR, "thead th")

    def values(column):
        return [float(value) for value in browser.execute_script(COLUMN, caption, column)]

    every = {column: values(column) for column in range(1, 7)}
    column = next(c for c, v in every.items() if v not in (sorted(v), sorted(v, reverse=True)))
    original, head = every[column], heads[column]
    button = head.find_element(By.TAG_NAME, "button")
    button.click()
    assert values(column) == sorted(original)
    assert head.get_attribute("aria-sort") == "ascending"
    button.click()
    assert values(column) == sorted(original, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    button.send_keys(Keys.ENTER)
    assert values(column) == sorted(original)
    heads[0].find_element(By.TAG_NAME, "button").send_keys(Keys.SPACE)
    assert [h.get_attribute("aria-sort") for h in (heads[0], head)] == ["ascending", "none"]
    assert browser.execute_script(COLUMN, caption, 0)[1:] == ["hmcl_ca", "vanilla"]


def test_hover_focus_and_arrows_tell_values(browser):
    resize(browser, 1400)
    tip = browser.find_element(By.ID, "tip")
    cells = browser.find_elements(By.CSS_SELECTOR, "table.map td[aria-label]")
    title = cells[1].find_element(By.XPATH, "ancestor::table/caption")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", cells[1])
    settle(browser)  # to scroll hides what is shown
    assert not tip.is_displayed()

    def tells(cell):
        return tip.text.split() == cell.get_attribute("aria-label").split()

    def hover(_):
        ActionChains(browser).move_to_element(title).perform()
        ActionChains(browser).move_to_element(cells[1]).perform()
        settle(browser)
        return tip.is_displayed()

    WebDriverWait(browser, 20).until(hover)
    assert tells(cells[1])
    browser.execute_script("arguments[0].focus()", cells[0])
    assert tells(cells[0])
    cells[0].send_keys(Keys.ARROW_RIGHT)
    settle(browser)
    assert browser.switch_to.active_element == cells[1]
    assert tells(cells[1])
    assert [c.get_attribute("tabindex") for c in cells[:3]] == ["-1", "0", "-1"]
    cells[1].send_keys(Keys.ARROW_DOWN)
    assert browser.switch_to.active_element == cells[4]
    cells[4].send_keys(Keys.ARROW_LEFT)  # task 2 was not there after task 1
    assert browser.switch_to.active_element == cells[4]
    assert tells(cells[4])
    cells[4].send_keys(Keys.ESCAPE)
    WebDriverWait(browser, 20).until(lambda _: not tip.is_displayed())
    browser.execute_script("arguments[0].focus()", cells[3])
    box = "const r = arguments[0].getBoundingClientRect(); return [r.left, r.right, innerWidth]"
    left, right, width = browser.execute_script(box, tip)
    assert 0 <= left < right <= width


def test_light_and_dark_and_drawings_with_the_ink_of_the_page(browser):
    drawing = browser.find_element(By.CSS_SELECTOR, "img.inked")
    toggle = browser.find_element(By.ID, "theme")
    ground = "return getComputedStyle(document.body).backgroundColor"
    papers = []
    for scheme in ("light", "dark"):
        resize(browser, 1400, scheme=scheme)
        for press in (lambda: None, toggle.click, lambda: toggle.send_keys(Keys.ENTER)):
            press()
            papers.append(browser.execute_script(ground))
            browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", drawing)
            settle(browser)
            grey = Image.open(io.BytesIO(drawing.screenshot_as_png)).convert("L")
            assert np.ptp(grey.getextrema()) > 150
    light, dark = papers[:2]
    assert papers[:3] == [light, dark, light]
    assert papers[3:] == [light, dark, light]  # the choice holds, whatever the system has
    assert light != dark
    assert toggle.get_attribute("aria-pressed") == "false"
    browser.execute_script("delete document.documentElement.dataset.theme")


LAYOUT = """
const wrong = [];
const width = document.documentElement.clientWidth;
const say = (what, e) => wrong.push(`${what}: ${e.tagName} ${e.textContent.slice(0, 40)}`);
const inBox = (e) => e.parentElement.closest('.scroll') !== null;
for (const one of document.querySelectorAll('details')) one.open = true;
if (document.documentElement.scrollWidth > width) wrong.push('the page scrolls sideways');
for (const e of document.querySelectorAll('body *')) {
  const style = getComputedStyle(e);
  if (!e.checkVisibility() || e.closest('svg, .unseen, .skip, #tip')) continue;
  const r = e.getBoundingClientRect();
  if (r.width === 0 || r.height === 0) continue;
  if (!inBox(e) && (r.right > width + 0.5 || r.left < -0.5)) say('beyond the page', e);
  const scrolls = ['auto', 'scroll'].includes(style.overflowX);
  if (!scrolls && style.display !== 'inline' && e.tagName !== 'IMG') {
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0) say('too wide', e);
    if (style.overflowY === 'hidden' && e.scrollHeight > e.clientHeight + 1) say('cut', e);
  }
  const apart = [...e.children].filter((c) => {
    const s = getComputedStyle(c);
    return c.checkVisibility() && !['inline', 'contents'].includes(s.display)
      && !['absolute', 'fixed', 'sticky'].includes(s.position);
  });
  for (let i = 1; i < apart.length; i++) {
    const [a, b] = [apart[i - 1].getBoundingClientRect(), apart[i].getBoundingClientRect()];
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 1 && down > 1) say('overlaps the one before', apart[i]);
  }
}
return wrong;
"""


@pytest.mark.parametrize("width", [1400, 1000, 400])
def test_nothing_overflows_overlaps_or_is_cut(browser, width):
    resize(browser, width)
    assert "\n".join(browser.execute_script(LAYOUT)) == ""
    # The check sees what it is for.
    browser.execute_script(
        "const p = document.createElement('p'); p.id = 'made'; p.textContent = 'x';"
        "p.style = 'width: 3000px; max-width: none; margin-top: -60px';"
        "document.querySelector('section').append(p)"
    )
    found = " ".join(browser.execute_script(LAYOUT))
    browser.execute_script("document.getElementById('made').remove()")
    for complaint in ("sideways", "beyond the page", "overlaps"):
        assert complaint in found


def test_on_a_narrow_screen_a_figure_can_be_enlarged(browser):
    resize(browser, 1400)
    figure = browser.find_element(By.CSS_SELECTOR, "figure")
    button = figure.find_element(By.CSS_SELECTOR, "button.enlarge")
    assert not button.is_displayed()
    resize(browser, 400)
    assert button.is_displayed()
    drawing = "return arguments[0].querySelector('svg, img').getBoundingClientRect().width"
    assert browser.execute_script(drawing, figure) < 400
    browser.execute_script("arguments[0].focus()", button)
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-pressed") == "true"
    assert browser.execute_script(drawing, figure) > 900
    assert "\n".join(browser.execute_script(LAYOUT)) == ""
    box = "const b = arguments[0].querySelector('.scroll'); return b.scrollWidth > b.clientWidth"
    assert browser.execute_script(box, figure)
    button.send_keys(Keys.SPACE)
    assert browser.execute_script(drawing, figure) < 400


def test_on_paper_everything_is_open_and_nothing_is_a_button(browser):
    browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = false")
    hidden = (
        "return [...document.querySelectorAll('details > :not(summary)')]"
        ".filter(e => !e.checkVisibility({contentVisibilityAuto: true})).length"
    )
    resize(browser, 1000)
    assert browser.execute_script(hidden) > 0
    resize(browser, 1000, media="print", scheme="dark")
    # Whether content is skipped is settled when a frame is drawn, not at once.
    WebDriverWait(browser, 20).until(lambda page: page.execute_script(hidden) == 0)
    assert not browser.find_element(By.ID, "theme").is_displayed()
    ink = browser.execute_script("return getComputedStyle(document.body).color")
    assert ink == "rgb(29, 33, 38)"
    resize(browser, 1000)
    assert len(base64.b64decode(browser.print_page())) > 50_000


def test_no_complaint_came_up_meanwhile(browser):
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.attacked") is None
