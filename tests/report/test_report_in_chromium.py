"""The report in a real browser: it opens, sorts, filters, opens items, takes the keyboard, and no text comes alive."""

from __future__ import annotations

import csv
import itertools
import json

import pytest
from chromium import browser, console, missing, requests, set_view
from report_data import HOSTILE, many, metric_of, pair_rows, reason_lines, rescored, rows, run_of, write_run
from waiting import until

from geval_local.analysis.comparison import compare
from geval_local.analysis.results import ABLATIONS
from geval_local.grouping import DocumentRule
from geval_local.report.comparison_page import write_compared
from geval_local.report.run_page import RunPage
from geval_local.report.written_reasons import read_reasons

if reason := missing():
    pytest.skip(f"the report is tested in Chromium, and there is {reason}", allow_module_level=True)

COUNT = 120
UNSCORED = (3, 57)
LOW = (10, 11, 90)
#: What a reader may wait for ten thousand items, in milliseconds from the start of the navigation.
PATIENCE = 3000

# Contrast of every visible text with the colour behind it, by WCAG 2's formula; what falls short is returned.
CONTRAST = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const linear = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = rgb(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  throw new Error("nothing opaque behind the text");
};
const poor = [];
let seen = 0;
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  if (!own || !node.getClientRects().length || node.closest("script, :disabled, title")) continue;
  const style = getComputedStyle(node);
  const front = rgb(node instanceof SVGElement ? style.fill : style.color);
  const [light, dark] = [luminance(front), luminance(behind(node))].sort((a, b) => b - a);
  seen += 1;
  if ((light + 0.05) / (dark + 0.05) < 4.5) poor.push(`${node.tagName}.${node.className} ${front} ${node.textContent}`);
}
return [seen, poor.slice(0, 5)];
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def made():
    given = rows(COUNT, unscored=UNSCORED, low_mass=LOW, threshold=3)
    given[77]["output"] = "A needle in the output."
    for row in given[20:25]:
        row["source"] = "A thread in the source."
    return given


@pytest.fixture(scope="module")
def page(made, tmp_path_factory):
    signature = "judge:nano@12|dtype:float32"
    known = {"coherence": (signature, metric_of(steps=["Read.", "Rate."])), "fluency": (signature, metric_of())}
    page = RunPage(run_of(made, known), human={"coherence": "scores.coherence"}, rule=DocumentRule("doc_id"))
    return page.write(tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture
def opened(driver, page):
    return load(driver, page)


def load(driver, path, link="#sort=place"):
    """Open a page with its rows in their order in the file, unless the link says otherwise."""
    driver.get("about:blank")
    set_view(driver, 1280)
    console(driver), requests(driver)
    driver.get(path.as_uri() + link)
    assert ready(driver)
    return driver


def ready(driver) -> bool:
    return driver.execute_script("return document.documentElement.dataset.ready") == "yes"


def find(driver, css):
    return driver.find_element("css selector", css)


def column(driver, name) -> list[str]:
    """Texts of one column on the current page of the table."""
    return driver.execute_script(
        """const heads = [...document.querySelectorAll("#item-table th")];
        const place = heads.findIndex((head) => head.dataset.name === arguments[0]);
        return [...document.querySelectorAll("#item-table tbody tr")].map((row) => row.cells[place].textContent);""",
        name,
    )


def click(driver, css):
    driver.execute_script("document.querySelector(arguments[0]).click()", css)


def choose(driver, css, value):
    driver.execute_script(
        """const control = document.querySelector(arguments[0]); control.value = arguments[1];
        control.dispatchEvent(new Event("input")); control.dispatchEvent(new Event("change"));""",
        css,
        value,
    )


def eventually(read, expected):
    """Read again and again until what was expected is there, and give it."""
    until(lambda: read() == expected)
    return expected


def status(driver, *, expected) -> str:
    """The line above the table; typing is answered after a short pause."""
    return eventually(lambda: find(driver, "#status").text, expected)


def active(driver) -> str:
    return driver.execute_script("return document.activeElement.outerHTML.slice(0, 200)")


def press(driver, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    for key in keys:
        ActionChains(driver).send_keys(key).perform()


def test_it_opens_without_a_complaint_and_without_a_request(opened, page):
    assert find(opened, "h1").text == "results"
    charts = "return document.querySelectorAll('#charts figure').length"
    assert opened.execute_script(charts) == 0, "sections of two metrics are folded, and drawn when they are opened"
    opened.execute_script("for (const one of document.querySelectorAll('#charts details')) one.open = true")
    assert eventually(lambda: opened.execute_script(charts), 6) == 6
    assert len(opened.find_elements("css selector", ".people figure")) == 2
    assert column(opened, "place") == [str(number) for number in range(1, 26)]
    click(opened, "[data-item='4']")
    assert console(opened) == []
    assert requests(opened) == [page.as_uri()]


def test_it_sorts_both_ways_and_leaves_unscored_items_last(opened, made):
    scores = {row["id"]: row["geval"]["coherence"]["score"] for row in made}
    expected = sorted(score for score in scores.values() if score is not None)
    choose(opened, "#size", "250")
    for state, values in (("ascending", expected), ("descending", expected[::-1])):
        click(opened, "th[data-name='score0'] button")
        assert find(opened, "th[data-name='score0']").get_attribute("aria-sort") == state
        shown = column(opened, "score0")
        assert shown[:-2] == [f"{value:.2f}" for value in values]
        assert shown[-2:] == ["unscored", "unscored"]
    sorted_heads = opened.find_elements("css selector", "th[aria-sort='ascending'], th[aria-sort='descending']")
    assert len(sorted_heads) == 1


@pytest.mark.parametrize("better", ["high", "low"])
def test_a_run_begins_with_its_worst_rows(driver, made, tmp_path, better):
    path = write_run(tmp_path / "run.jsonl", made, {"coherence": "judge:a", "fluency": "judge:a"}, better=better)
    load(driver, RunPage(path).write(tmp_path / "worst.html"), link="")
    scores = sorted((row["geval"]["coherence"]["score"] for place, row in enumerate(made) if place not in UNSCORED))
    worst = scores if better == "high" else scores[::-1]
    assert column(driver, "score0") == [f"{score:.2f}" for score in worst[:25]]
    assert driver.execute_script("return location.hash") == ""


def test_pages_hold_every_item_once(opened):
    seen = []
    while True:
        seen += column(opened, "place")
        if find(opened, "[data-page='next']").get_attribute("disabled"):
            break
        click(opened, "[data-page='next']")
    assert seen == [str(number) for number in range(1, COUNT + 1)]
    assert find(opened, "#status").text == "Items 101 to 120 of 120"


def test_it_filters_by_text_kind_and_score(opened, made):
    choose(opened, "#words", "NEEDLE in")
    assert status(opened, expected="Items 1 to 1 of 1 (120 in all)") == "Items 1 to 1 of 1 (120 in all)"
    assert column(opened, "place") == ["78"]
    choose(opened, "#words", "thread in the source")
    assert status(opened, expected="Items 1 to 5 of 5 (120 in all)") == "Items 1 to 5 of 5 (120 in all)"
    choose(opened, "#words", "4057 tokens")
    assert status(opened, expected="Items 1 to 1 of 1 (120 in all)") == "Items 1 to 1 of 1 (120 in all)"
    choose(opened, "#words", "<b>nothing</b>")
    assert status(opened, expected="No item fits (120 in all)") == "No item fits (120 in all)"
    choose(opened, "#words", "")
    status(opened, expected="Items 1 to 25 of 120")
    choose(opened, "#only", "unscored")
    assert column(opened, "place") == [str(index + 1) for index in UNSCORED]
    assert column(opened, "score0") == ["unscored", "unscored"]
    choose(opened, "#only", "low")
    assert column(opened, "place") == [str(index + 1) for index in LOW]
    choose(opened, "#only", "failed")
    choose(opened, "#size", "250")
    scores = [row["geval"]["coherence"]["score"] for row in made]
    assert column(opened, "score0") == [f"{score:.2f}" for score in scores if score is not None and score < 3]
    choose(opened, "#only", "all")
    choose(opened, "#from", "2")
    choose(opened, "#to", "4")
    inside = [f"{score:.2f}" for score in scores if score is not None and 2 <= score <= 4]
    status(opened, expected=f"Items 1 to {len(inside)} of {len(inside)} (120 in all)")
    assert column(opened, "score0") == inside


def test_another_metric_fills_the_table(opened, made):
    choose(opened, "#metric", "1")
    assert column(opened, "score0")[:3] == [f"{row['geval']['fluency']['score']:.2f}" for row in made[:3]]
    assert column(opened, "other0")[:3] == [f"{row['geval']['coherence']['score']:.2f}" for row in made[:3]]


def test_an_item_opens_with_its_texts_and_figures(opened, made):
    click(opened, f"[data-item='{LOW[0]}']")
    dialog = find(opened, "#item")
    row = made[LOW[0]]
    texts = [text.get_attribute("textContent") for text in opened.find_elements("css selector", "#item pre")]
    assert texts[:2] == [row["output"], row["source"]]
    assert f"{row['geval']['fluency']['score']:.3f}" in dialog.text
    assert '" The" 0.410' in dialog.text
    assert "something other than a label" in dialog.text
    click(opened, "[data-step='close']")
    click(opened, f"[data-item='{UNSCORED[0]}']")
    assert f"Unscored: too_long: {row_error(made, UNSCORED[0])}" in dialog.text
    assert "score 0" not in dialog.text


def state_of(driver):
    shown = "return [location.hash, document.querySelector('#status').textContent, "
    shown += "document.querySelector('#item').open && document.querySelector('#item-title').textContent]"
    return driver.execute_script(shown), column(driver, "place"), column(driver, "score0")


def test_a_link_shows_what_its_sender_saw(driver, made, page):
    opened = load(driver, page, link="")
    assert opened.execute_script("return location.hash") == ""
    choose(opened, "#metric", "1")
    choose(opened, "#column", "system_id")
    choose(opened, "#value", "M2")
    choose(opened, "#from", "1.5")
    click(opened, "th[data-name='score0'] button")
    choose(opened, "#words", "island & ferry")
    status(opened, expected="No item fits (120 in all)")
    choose(opened, "#words", "")
    choose(opened, "#size", "50")
    assert eventually(lambda: len(column(opened, "place")) > 10, True)
    item = opened.execute_script("return document.querySelectorAll('#item-table .open')[3].dataset.item")
    click(opened, f"[data-item='{item}']")
    sent = state_of(opened)
    assert sent[0][0] == (
        f"#metric=fluency&from=1.5&column=system_id&value=M2&sort=-score0&rows=50&row={int(item) + 1}"
    )
    assert sent[0][2] == f"Row {int(item) + 1} · item-{int(item) + 1}"
    assert find(opened, "#item .link").get_attribute("href") == page.as_uri() + sent[0][0]
    opened.get("about:blank")
    opened.get(page.as_uri() + sent[0][0])
    assert state_of(opened) == sent
    assert find(opened, "#value").get_attribute("value") == "M2"
    click(opened, "[data-step='close']")
    assert eventually(lambda: "row=" in opened.execute_script("return location.hash"), False) is False
    opened.execute_script("location.hash = '#row=7'")  # an address that is typed into an open page
    assert eventually(lambda: state_of(opened)[0][2], "Row 7 · item-7") == "Row 7 · item-7"
    scores = {row["geval"]["coherence"]["score"]: place for place, row in enumerate(made, start=1)}
    assert column(opened, "place")[0] == str(scores[min(score for score in scores if score is not None)])
    assert console(opened) == []


@pytest.mark.parametrize(
    "fragment",
    ["#row=999", "#sort=nothing&rows=7&column=none&value=x&metric=x&from=a&page=99", "#row=1%00&text=%E0%A4"],
)
def test_a_link_to_what_is_not_there_opens_the_page(driver, page, fragment):
    driver.get("about:blank")
    driver.get(page.as_uri() + fragment)
    assert ready(driver)
    told = find(driver, "#status").text
    assert told.startswith(
        "Row 999 is not among the rows of this page. " if "999" in fragment else ("Items", "Row", "No")
    )
    assert not driver.execute_script("return document.querySelector('#item').open")
    assert [line for line in console(driver) if "SEVERE" in line] == []


def test_the_anchor_of_a_section_stays(driver, page):
    driver.get("about:blank")
    driver.get(page.as_uri() + "#items")
    assert ready(driver)
    assert driver.execute_script("return [location.hash, scrollY > 100]") == ["#items", True]


def test_it_filters_by_any_column(opened, made):
    choose(opened, "#column", "doc_id")
    values = opened.execute_script("return [...document.querySelectorAll('#value option')].map((one) => one.value)")
    assert values == ["", *(f"doc-{number}" for number in range(1, 25))]
    choose(opened, "#value", "doc-2")  # and not doc-20
    status(opened, expected="Items 1 to 5 of 5 (120 in all)")
    assert column(opened, "place") == ["6", "7", "8", "9", "10"]
    choose(opened, "#column", "output")  # too many values for a list: a text that they hold
    choose(opened, "#value", "a NEEDLE")
    status(opened, expected="Items 1 to 1 of 1 (120 in all)")
    choose(opened, "#column", "coherence.error_code")
    choose(opened, "#value", "too_long")
    status(opened, expected="Items 1 to 2 of 2 (120 in all)")
    assert column(opened, "place") == [str(index + 1) for index in UNSCORED]
    choose(opened, "#column", "")
    status(opened, expected="Items 1 to 25 of 120")


def test_the_rows_that_fit_are_saved_without_a_request(opened, made, page, tmp_path):
    opened.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    choose(opened, "#only", "unscored")
    click(opened, "th[data-name='place'] button")
    for kind in ("csv", "json"):
        click(opened, f"[data-download='{kind}']")
    names = [f"results-2-rows.{kind}" for kind in ("csv", "json")]
    assert eventually(lambda: sorted(path.name for path in tmp_path.iterdir()), names) == names
    with (tmp_path / names[0]).open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    rows = json.loads((tmp_path / names[1]).read_text(encoding="utf-8"))
    assert [row["row"] for row in table] == [str(row["row"]) for row in rows] == ["58", "4"]
    for index, line, row in zip((57, 3), table, rows, strict=True):
        given = made[index]
        for name in ("id", "doc_id", "source", "output"):
            assert line[name] == row["columns"][name] == given[name]
        figures = given["geval"]["coherence"]
        own = {"score": None, "label_mass": None, "error": figures["error"], "error_code": "too_long"}
        assert row["geval"]["coherence"] == own
        assert [line[f"coherence.{name}"] for name in own] == ["", "", figures["error"], "too_long"]
    assert {address for address in requests(opened) if not address.startswith("blob:")} == {page.as_uri()}
    assert console(opened) == []


def test_texts_stand_in_their_own_direction(driver, tmp_path):
    made = rows(4)
    made[0]["output"] = "هذه فقرة باللغة العربية.\nA line in English."
    load(driver, RunPage(made).write(tmp_path / "rtl.html"))
    directions = """return [...document.querySelectorAll(arguments[0])].slice(0, 2)
        .map((one) => [getComputedStyle(one).direction, getComputedStyle(one).unicodeBidi]);"""
    assert [one[0] for one in driver.execute_script(directions, "#item-table .snippet")] == ["rtl", "ltr"]
    click(driver, "[data-item='0']")
    assert driver.execute_script(directions, "#item pre") == [["rtl", "plaintext"], ["ltr", "plaintext"]]
    # The full stop of the Arabic line stands at its left end, the line at the right edge of its box.
    place = """const text = document.querySelector("#item pre"), node = text.firstChild, range = document.createRange();
        const at = (from) => {
          range.setStart(node, from);
          range.setEnd(node, from + 1);
          return range.getBoundingClientRect();
        };
        const box = text.getBoundingClientRect(), stop = node.data.indexOf(".");
        return [at(stop).left < at(0).left, box.right - at(0).right < 40, at(stop + 2).left - box.left < 40];"""
    assert driver.execute_script(place) == [True, True, True]
    click(driver, "[data-step='close']")


def test_print_opens_what_is_folded(opened):
    opened.execute_script("dispatchEvent(new Event('beforeprint'))")
    closed = "return document.querySelectorAll('details.per-metric:not([open])').length"
    assert opened.execute_script(closed) == 0


def row_error(made, index):
    return made[index]["geval"]["coherence"]["error"]


def test_the_keyboard_reaches_everything(opened):
    from selenium.webdriver.common.keys import Keys

    press(opened, Keys.TAB)
    assert "Skip to the items" in active(opened)
    press(opened, Keys.ENTER)
    for _ in range(40):
        press(opened, Keys.TAB)
        if opened.execute_script("return document.activeElement.closest('th')?.dataset.name") == "score0":
            break
    else:
        pytest.fail("tabbing does not reach the heading of the scores")
    press(opened, Keys.ENTER)
    assert find(opened, "th[data-name='score0']").get_attribute("aria-sort") == "ascending"
    assert opened.execute_script("return document.activeElement.closest('th')?.dataset.name") == "score0"
    assert opened.execute_script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    for _ in range(20):
        press(opened, Keys.TAB)
        item = opened.execute_script("return document.activeElement.dataset.item")
        if item is not None:
            break
    press(opened, Keys.ENTER)
    assert opened.execute_script("return document.querySelector('#item').open")
    press(opened, *[Keys.TAB] * 30)
    inside = "return document.activeElement === document.body || !!document.activeElement.closest('#item')"
    assert opened.execute_script(inside), "the focus left the open item"
    click(opened, "[data-step='next']")
    second = opened.execute_script("return document.querySelectorAll('.open')[1].dataset.item")
    press(opened, Keys.ESCAPE)
    assert not opened.execute_script("return document.querySelector('#item').open")
    focused = "return document.activeElement.dataset.item"
    assert eventually(lambda: opened.execute_script(focused), second) == second != item


@pytest.mark.sweep("1280-dark", "400-light")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_is_readable(opened, width, scheme):
    set_view(opened, width, scheme=scheme)
    opened.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    back = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(251, 251, 250)") == (scheme == "light")
    for _ in range(2):
        over = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert opened.execute_script(over) <= 0, "the page scrolls sideways"
        seen, poor = opened.execute_script(CONTRAST)
        assert seen > 100
        assert not poor
        click(opened, f"[data-item='{LOW[0]}']")
        dialog = "const d = document.querySelector('#item'); return d.scrollWidth - d.clientWidth"
        assert opened.execute_script(dialog) <= 0, "the open item scrolls sideways"
    click(opened, "[data-step='close']")


def test_two_runs_show_their_largest_disagreements_first(driver, made, tmp_path):
    other = rescored(made, seed=5)
    runs = [
        write_run(tmp_path / f"{name}.jsonl", own, dict.fromkeys(made[0]["geval"], f"judge:{name}"))
        for name, own in (("a", made), ("b", other))
    ]
    path = write_compared(compare(runs, across=("judge",)), tmp_path / "c.html")
    load(driver, path, link="")
    assert find(driver, "#differing").text.splitlines()[1] == "judge all a b"
    pairs = [
        (a["geval"]["coherence"]["score"], b["geval"]["coherence"]["score"]) for a, b in zip(made, other, strict=True)
    ]
    gaps = sorted((abs(a - b) for a, b in pairs if a is not None), reverse=True)
    assert column(driver, "distance") == [f"{gap:.2f}" for gap in gaps[:25]]
    click(driver, "#item-table tbody .open")
    assert len(driver.find_elements("css selector", "#item .card")) == 4
    assert console(driver) == []
    assert requests(driver) == [path.as_uri()]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    made = rows(len(HOSTILE) + 2, metrics=("coherence",), unscored=[len(HOSTILE) + 1])
    for row, text in zip(made, HOSTILE, strict=False):
        row |= {"id": text, "doc_id": text, "system_id": text, "source": text, "output": text, text: text}
        row["geval"][text] = row["geval"]["coherence"] | {
            "probabilities": {text: 0.4, "2": 0.6},
            "label_mass": 0.2,
            "other_tokens": [[text, 0.5]],
        }
    made[-2]["output"] = HOSTILE[1] * (2**20 // len(HOSTILE[1]))
    made[-1]["geval"]["coherence"]["error"] = HOSTILE[1]
    known = [*HOSTILE, *(metric for row in made for metric in row["geval"])]
    told = zip(known, itertools.cycle(HOSTILE[:7]))  # a metric holds no half of a character
    run = run_of(made, {text: ("|".join(HOSTILE), metric_of(criteria=one, steps=[one])) for text, one in told})
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    options = {"human": {"coherence": "scores.coherence"}, "facts": dict.fromkeys(HOSTILE, HOSTILE[1])}
    RunPage(run, rule=DocumentRule("doc_id"), **options).write(path)
    return path, made


def test_hostile_texts_are_inert(driver, hostile):
    path, _ = hostile
    load(driver, path)
    for index, text in enumerate(HOSTILE):
        click(driver, f"[data-item='{index}']")
        shown = find(driver, "#item pre").get_attribute("textContent")
        assert shown == text.encode("utf-8", "backslashreplace").decode().replace("\r", "\n")
        click(driver, "[data-step='close']")
    click(driver, f"[data-item='{len(HOSTILE) + 1}']")
    assert HOSTILE[1] in find(driver, "#item").text
    driver.execute_script("document.querySelector('#item').close()")
    for text in HOSTILE[:3]:
        choose(driver, "#words", text)
    for index in range(len(HOSTILE) + 1):
        choose(driver, "#metric", str(index))
    alive = driver.execute_script(
        """const listening = ({ attributes }) => [...attributes].some(({ name }) => name.startsWith("on"));
        return [window.hit ?? null, document.scripts.length,
          document.querySelectorAll("img, iframe, link, object, a:not([href^='#'])").length,
          [...document.querySelectorAll("*")].filter(listening).length];"""
    )
    assert alive == [None, 2, 0, 0]
    assert console(driver) == []
    assert requests(driver) == [path.as_uri()]


def test_a_megabyte_of_text_is_cut_until_asked_for(driver, hostile):
    path, made = hostile
    load(driver, path)
    long = made[-2]["output"]
    assert len(long) > 1_000_000
    assert len(column(driver, "item")[len(HOSTILE)]) < 420
    click(driver, f"[data-item='{len(HOSTILE)}']")
    assert find(driver, "#item pre").get_attribute("textContent") == long[:20000]
    click(driver, "#item .all")
    assert find(driver, "#item pre").get_attribute("textContent") == long
    assert driver.execute_script("return [window.hit ?? null, document.scripts.length]") == [None, 2]


def test_the_policy_stops_what_the_page_itself_would_not_do(driver, page):
    """Were a text to come alive after all, it could neither run a script nor send anything."""
    load(driver, page)
    driver.execute_async_script(
        """const done = arguments[0];
        const add = (tag, set) => document.body.append(Object.assign(document.createElement(tag), set));
        add("script", { textContent: "window.hit = 1" });
        add("img", { src: "http://192.0.2.1/hit.png" });
        const old = document.createElement("div"); old.setAttribute("onclick", "window.hit = 3"); old.click();
        fetch("http://192.0.2.1/").catch(() => setTimeout(done, 200));"""
    )
    assert driver.execute_script("return window.hit ?? null") is None
    refused = [line for line in console(driver) if "Content Security Policy" in line]
    assert len(refused) >= 4
    assert requests(driver) == [page.as_uri()]


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_ten_thousand_items_open_in_time(driver, tmp_path, count):
    path = RunPage(many(count, metrics=("coherence", "fluency", "relevance"))).write(tmp_path / "big.html")
    waits = []
    for _ in range(2):  # the better of two, because the machine may be busy with something else
        load(driver, path)
        waits.append(driver.execute_script("return performance.getEntriesByType('navigation')[0].loadEventEnd"))
    assert 0 < min(waits) < PATIENCE
    assert find(driver, "#status").text == f"Items 1 to 25 of {count:,}"
    assert driver.execute_script("return document.querySelectorAll('*').length") < 3000
    took = driver.execute_script(
        """const start = performance.now(); document.querySelector("th[data-name='score0'] button").click();
        document.querySelector("[data-page='last']").click(); return performance.now() - start;"""
    )
    assert took < PATIENCE
    assert find(driver, "#status").text == f"Items {count - 24:,} to {count:,} of {count:,}"


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A page with long names, systems, ratings and an ablation: everything that could be cut."""
    names = ("summarization/coherence", "factuality/summary_consistency")
    given = rows(80, metrics=names, per_group=8, unscored=(5,))
    page = RunPage(
        run_of(given, {name: ("", metric_of(name=name)) for name in names}),
        human={name: f"scores.{name}" for name in names},
        rule=DocumentRule("doc_id"),
        estimators=ABLATIONS,
    )
    return page.write(tmp_path_factory.mktemp("wide") / "wide.html")


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (800, "dark"), (390, "light")])
def test_no_table_is_cut_and_the_picture_of_systems_fits(driver, wide, width, scheme):
    load(driver, wide)
    set_view(driver, width, 900, scheme=scheme)
    driver.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    cut = driver.execute_script(
        "return [...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth)"
        ".map((one) => one.getAttribute('aria-label'))"
    )
    if width != 800:
        assert cut == []
    assert driver.execute_script("return document.querySelectorAll('#systems .whisker:not(.end)').length") == 16
    outside = driver.execute_script(
        """const box = (node) => node.getBoundingClientRect();
        return [...document.querySelectorAll('.intervals svg')].flatMap((image) => [...image.querySelectorAll('text')]
          .filter((one) => box(one).left < box(image).left - 1 || box(one).right > box(image).right + 1)
          .map((one) => one.textContent));"""
    )
    assert outside == []
    # The picture takes the page's width, and no name or figure stands on a line of it.
    used, over = driver.execute_script(
        """const box = (node) => node.getBoundingClientRect();
        const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
          && a.top < b.bottom - 1 && b.top < a.bottom - 1;
        const sides = [...document.querySelectorAll('.side')];
        const tracks = sides.map((one) => box(one.querySelector('svg')));
        return [Math.min(...sides.map((one) => box(one).width)) / box(document.querySelector('main')).width,
          sides.flatMap((one) => [...one.querySelectorAll('.name, .value')])
            .filter((one) => tracks.some((track) => meet(box(one), track))).map((one) => one.textContent)];"""
    )
    assert over == []
    assert used > 0.85
    seen, poor = driver.execute_script(CONTRAST)
    assert seen > 100
    assert poor == []


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (800, "dark"), (390, "light"), (390, "dark")])
def test_pairs_are_readable_and_their_tables_fit(driver, tmp_path, width, scheme):
    names = ("a", "Ünïcode systém", "<b>bold</b>", "a very long name of a system " * 3)
    load(driver, RunPage(pair_rows(names, documents=8)).write(tmp_path / "pairs.html"), link="")
    set_view(driver, width, 900, scheme=scheme)
    driver.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    shades = driver.execute_script(
        "return [...document.querySelectorAll('.matrix td')].map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert len(shades) == len(names) ** 2
    assert len(set(shades)) >= 4
    seen, poor = driver.execute_script(CONTRAST)
    assert seen > 100
    assert poor == []
    assert column(driver, "system")[0] == "a / Ünïcode systém"
    assert console(driver) == []


@pytest.mark.sweep("390-light")
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (800, "dark"), (390, "light")])
def test_reasons_stand_beside_their_rows_and_stay_text(driver, made, tmp_path, width, scheme):
    texts = {1: "It quotes a needle.", 2: HOSTILE[2], 5: None}
    path = reason_lines(tmp_path / "reasons.jsonl", made, "coherence", texts)
    load(driver, RunPage(made, reasons=read_reasons(path)).write(tmp_path / "r.html"))
    set_view(driver, width, 900, scheme=scheme)
    choose(driver, "#only", "explained")
    assert column(driver, "why") == [texts[1], texts[2]]
    choose(driver, "#only", "all")
    choose(driver, "#words", "quotes a needle")
    status(driver, expected="Items 1 to 1 of 1 (120 in all)")
    for item, shown in ((0, texts[1]), (1, texts[2]), (4, "No reason: the judge wrote nothing")):
        choose(driver, "#words", "")
        status(driver, expected="Items 1 to 25 of 120")
        click(driver, f"[data-item='{item}']")
        written = find(driver, "#item .written")
        label = made[item]["geval"]["coherence"]["mode"]
        assert written.text.splitlines()[:2] == [f"Why {label}?", shown]
        assert (
            driver.execute_script("const d = document.querySelector('#item'); return d.scrollWidth - d.clientWidth")
            <= 0
        )
        assert driver.execute_script(CONTRAST)[1] == []
        click(driver, "[data-step='close']")
    assert "ab" * 32 in find(driver, "#item .written").get_attribute("textContent")
    assert driver.execute_script("return [window.hit ?? null, document.querySelectorAll('img').length]") == [None, 0]
    assert console(driver) == []


def test_the_number_of_a_row_stands_once(driver, tmp_path):
    made = rows(12)
    load(driver, RunPage([{key: row[key] for key in row if key != "id"} for row in made]).write(tmp_path / "r.html"))
    heads = driver.execute_script(
        "return [...document.querySelectorAll('#item-table th')].map((one) => one.dataset.name)"
    )
    assert "place" not in heads
    assert driver.execute_script("return [...document.querySelectorAll('.key')].map((one) => one.textContent)") == [
        str(number) for number in range(1, 13)
    ]
    click(driver, "[data-item='4']")
    assert find(driver, "#item-title").text == "Row 5"
    assert "row" not in driver.execute_script(
        "return [...document.querySelectorAll('#item .texts dt')].map((one) => one.textContent)"
    )
    with_ids = RunPage(made).write(tmp_path / "ids.html")
    load(driver, with_ids)
    assert column(driver, "place")[:2] == ["1", "2"]
