"""Many runs as one folder: the overview's figures, its links, and whose files are replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_run import read_rows, run, write_rows
from html_page import Page
from report_data import HOSTILE, rescored, rows

from geval_local.analysis.tables import interval
from geval_local.io.ownership import sealed
from geval_local.report.page import PAGE
from geval_local.report.reports import INDEX
from geval_local.report.reports import write_report as pages
from geval_local.statistics.correlation import correlate
from geval_local.statistics.interval import mean_interval
from geval_local.statistics.records import ScoredItem
from geval_local.wording import PARAMETER


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    made = rows(40, unscored=[3])
    write_rows(tmp_path / "runs" / "first.jsonl", made)
    write_rows(tmp_path / "runs" / "second one.jsonl", rescored(made, seed=2))
    return tmp_path


def report(here, *arguments: object, code: int = 0):
    named = sorted((here / "runs").iterdir())
    done = run("report", *named, "-o", "site/", *arguments, home=here / "home")
    assert done.exit_code == code, done.stderr
    return done


def page_of(name: str) -> Page:
    return Page(Path("site", name).read_text(encoding="utf-8"))


def files() -> set[str]:
    return {path.name for path in Path("site").iterdir()}


def test_every_figure_of_the_overview_is_that_of_the_runs_page_and_of_the_command(here):
    report(here, "--human", "coherence=scores.coherence", "--group-by", "doc_id")
    assert files() == {INDEX, "first.html", "second-one.html"}
    overview = page_of(INDEX).text
    for name, page in (("first", "first.html"), ("second one", "second-one.html")):
        own = page_of(page).text
        ranked = run("compare", here / "runs" / f"{name}.jsonl", "--group-by", "doc_id", "--json", home=here / "home")
        assert json.loads(ranked.stdout)["systems"]["fluency"]["told"] in own
        made = read_rows(here / "runs" / f"{name}.jsonl")
        for metric in ("coherence", "fluency"):
            scored = [row for row in made if row["geval"][metric]["score"] is not None]
            scores = [row["geval"][metric]["score"] for row in scored]
            mean = mean_interval(scores, [row["doc_id"] for row in scored])
            assert f"{name} {interval(mean)}" in overview
            assert f"{mean.value:.3f} {mean.low:.3f} to {mean.high:.3f}" in own
        items = [
            ScoredItem(row["doc_id"], row["system_id"], row["scores"]["coherence"], row["geval"]["coherence"]["score"])
            for row in made
            if row["geval"]["coherence"]["score"] is not None
        ]
        agreed = interval(correlate(items, "summary").spearman)
        assert agreed in overview
        assert agreed in own
    assert "same doc_id count as one document" in overview


def test_pages_name_parameters_as_options(here):
    told = "row 4: the field 'output' is a list of 2 texts; `system_columns=output` scores each"
    for file in (here / "runs").iterdir():
        made = read_rows(file)
        for row in made:
            row["geval"]["coherence"] = {"error": told, "error_code": "not_text", "score": None}
        write_rows(file, made)
    write_rows(here / "runs" / "broken.jsonl", [{"geval": "`group_by=doc`"}])
    report(here)
    for name in files():
        assert [value for _, value in PARAMETER.findall(page_of(name).text) if value] == []
    page = page_of("first.html")
    assert "--system-columns output scores each" in page.text
    assert "system_columns=" not in json.dumps(page.data)


def test_a_run_without_the_named_systems_costs_only_its_own_page(here):
    made = read_rows(here / "runs" / "first.jsonl")
    write_rows(here / "runs" / "first.jsonl", [row | {"system": "ab"[at % 2]} for at, row in enumerate(made)])
    done = report(here, "--system-columns", "a", "b")
    assert files() == {INDEX, "first.html"}
    assert "second one.jsonl: no row is of the system 'a'" in " ".join(done.stderr.split())


def test_the_folder_opens_from_any_disk(here):
    report(here)
    for name in files():
        page = page_of(name)
        addresses = [value for _, key, value in page.attributes if key in ("src", "href", "action", "data", "srcset")]
        targets = [value for value in addresses if not value.startswith("#")]
        assert targets
        assert all((Path("site") / target).is_file() for target in targets), targets
        assert not {"link", "img", "iframe", "base"} & set(page.tags)
        (policy,) = [value for _, key, value in page.attributes if key == "content" and "default-src" in value]
        assert policy.startswith("default-src 'none'; ")
    assert "script" not in page_of(INDEX).tags
    assert ("a", "href", "index.html") in page_of("first.html").attributes


@pytest.mark.slow
def test_only_pages_of_this_tool_are_replaced_or_removed(here):
    Path("site").mkdir()
    Path("site", "notes.txt").write_text("mine")
    report(here)
    report(here)
    # A run that is gone takes its page with it; what a person changed stays.
    (here / "runs" / "second one.jsonl").unlink()
    report(here)
    assert files() == {INDEX, "first.html", "notes.txt"}
    assert Path("site", "notes.txt").read_text() == "mine"
    Path("site", "first.html").write_text("my own page")
    refused = report(here, code=2)
    assert "first.html exists, and is not an unchanged result of this tool" in refused.stderr
    assert Path("site", "first.html").read_text() == "my own page"
    report(here, "--overwrite")
    assert "Which system is better?" in Path("site", "first.html").read_text()


def test_several_runs_are_no_single_page(here):
    done = run("report", *(here / "runs").iterdir(), "-o", "page.html", home=here / "home")
    assert done.exit_code == 2
    assert "Write --output site/" in done.stderr
    assert not Path("page.html").exists()


def test_a_page_that_was_changed_outlives_its_run(here):
    report(here)
    page = Path("site", "second-one.html")
    page.write_text(page.read_text() + "<!-- a remark -->")
    (here / "runs" / "second one.jsonl").unlink()
    report(here)
    assert "a remark" in page.read_text()


def test_an_overview_of_the_users_is_refused(here):
    Path("site").mkdir()
    Path("site", INDEX).write_text("mine")
    assert INDEX in report(here, code=2).stderr
    assert files() == {INDEX}
    report(here, "--overwrite")
    assert "first.html" in files()


def linking(here, link: str, *, signed: bool) -> None:
    """Write an overview that also links to another page, signed as ours or edited."""
    index = Path("site", INDEX)
    text = index.read_text(encoding="utf-8").replace('href="first.html"', f'href="{link}"')
    index.write_text(sealed("".join(text.splitlines(keepends=True)[:-1]), PAGE) if signed else text, encoding="utf-8")


def test_a_name_that_leads_out_of_the_folder_is_not_followed(here):
    report(here)
    outside = Path("outside.html")
    outside.write_bytes(Path("site", "first.html").read_bytes())
    linking(here, "../outside.html", signed=True)
    report(here)
    assert outside.is_file()


@pytest.mark.parametrize("signed", [False, True])
def test_an_overview_that_was_edited_removes_no_page(here, signed):
    report(here)
    other = Path("site", "other.html")
    other.write_bytes(Path("site", "first.html").read_bytes())
    linking(here, "other.html", signed=signed)
    refused = report(here, code=0 if signed else 2)
    assert signed or f"{INDEX} exists, and is not an unchanged result" in refused.stderr
    report(here, "--overwrite")
    assert other.is_file() != signed  # a page of ours that our overview links to goes with its run


@pytest.mark.parametrize("name", ["first.html", INDEX])
@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_a_site_is_not_written_through_a_link(here, name, kind):
    report(here)
    kept = here / "kept.html"
    Path("site", name).rename(kept)
    Path("site", name).symlink_to(kept) if kind == "link" else Path("site", name).hardlink_to(kept)
    before = kept.read_bytes()
    for more in ((), ("--overwrite",)):
        assert kind in report(here, "--rows", 1, "--title", "another", *more, code=2).stderr
    assert kept.read_bytes() == before


def test_what_is_no_run_is_named_on_the_overview(here):
    (here / "runs" / "notes.txt").write_text("not a run")
    done = report(here)
    assert "notes.txt" in done.stderr
    assert "Not shown" in page_of(INDEX).text
    assert "notes.txt" in page_of(INDEX).text
    for path in (here / "runs").glob("*.jsonl"):
        path.unlink()
    assert "none of the 1 runs can be shown" in report(here, code=2).stderr


def test_names_are_told_apart_and_texts_stay_texts(here):
    made = rows(10)
    for index, text in enumerate(HOSTILE[:4]):
        for row in made:
            row["geval"] = {text: next(iter(row["geval"].values()))}
        folder = here / "runs" / f"d{index}"
        folder.mkdir()
        write_rows(folder / "same.jsonl", made)
    named = sorted((here / "runs").glob("d*/same.jsonl"))
    done = run("report", *named, "-o", "site/", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert files() == {INDEX, "same.html", "same-2.html", "same-3.html", "same-4.html"}
    page = page_of(INDEX)
    assert not {"script", "img"} & set(page.tags)
    assert HOSTILE[0] in page.text


def test_rows_in_hand_are_a_folder_too(tmp_path):
    written = pages([rows(8), rows(9)], tmp_path / "site")
    assert (written.pages, written.failed) == (2, {})
    shown = [
        Page((tmp_path / "site" / name).read_text(encoding="utf-8")) for name in ("results.html", "results-2.html")
    ]
    assert [len(page.data["keys"]) for page in shown] == [8, 9]
