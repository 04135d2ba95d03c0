"""The page of an explanation in a real browser: what is on it, what a click shows; it asks for nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.cli import main
from sglc.cli.program_file import open_function
from sglc.explain.estimate.analyze import analyzed
from sglc.explain.explanation import Explanation
from sglc.explain.render.page import page
from tests.explain.browser import browser
from tests.oracle_backend import OracleBackend

ESSAY = "Bees are worth keeping. </script><b>bold</b> <!-- & &amp; 'quoted' \"twice\""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


def judged(*, analyze: bool) -> dict[str, Any]:
    """The judge example on the oracle, run or not."""
    function, backend = open_function("examples/judge.py"), OracleBackend()
    explanation = function.explain(backend, essay=ESSAY)
    data = explanation.to_json()
    if analyze:
        result = function.run(essay=ESSAY, backend=backend, seed=1).sync()
        analysis = analyzed(explanation.forecast, [result], backend.target.tokenizer)
        assert analysis.within
        data["analysis"] = analysis.to_json()
    backend.close()
    return data


@contextmanager
def opened(chromium: Any, tmp_path: Path, html: str, theme: str = "light") -> Iterator[Any]:
    """The page; fails if anything was wrong on it, or if it asked for anything but itself."""
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    tab = chromium.new_page(viewport={"width": 1280, "height": 800}, color_scheme=theme)
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    try:
        yield tab
        assert said == []
        assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    finally:
        tab.close()


def view(tab: Any, name: str) -> None:
    tab.get_by_role("tab", name=name, exact=True).click()


@pytest.mark.browser
def test_a_click_through_the_page(chromium: Any, tmp_path: Path) -> None:
    data = judged(analyze=True)
    with opened(chromium, tmp_path, page([data])) as tab:
        head = tab.inner_text("#head")
        assert "grade_essay on local: estimate / actual" in head
        assert "4 / 4\ncalls" in head
        # Steps: branches side by side, what waits for them below.
        nodes = tab.locator("#view g.node")
        assert nodes.count() == 4
        places = [(box.get_attribute("x"), box.get_attribute("y")) for box in nodes.locator("rect").all()]
        assert len({x for x, _ in places[:3]}) == 3
        assert len({y for _, y in places[:3]}) == 1
        assert float(places[3][1]) > float(places[0][1]) + 72
        assert tab.locator("#view path.edge").count() == 3
        assert tab.locator("#view path.edge.critical").count() == 1
        # A click shows the text of a step: what is shared greyed, what is not known marked, what was answered.
        tab.locator('#view g[data-site="grade_essay.verdict#0"]').click()
        shown = tab.locator("#detail pre.prompt")
        assert shown.inner_text().startswith(f"Evaluate this essay:\n{ESSAY}\n")
        assert shown.locator(".shared-text").inner_text() == f"Evaluate this essay:\n{ESSAY}\n"
        assert shown.locator(".unknown-text").all_inner_texts() == ["{score}"] * 3
        answer = tab.locator("#detail pre.made .answer").inner_text()
        assert answer in ("weak", "fair", "strong") or answer.strip() in ("weak", "fair", "strong")
        # By the keyboard too.
        tab.locator('#view g[data-site="grade_essay[1].score#0"]').focus()
        tab.keyboard.press("Enter")
        assert "Rate the Creativity" in tab.inner_text("#detail pre.prompt")
        # Prefixes: as wide as they are long, and a click shows how many tokens.
        view(tab, "Prefixes")
        blocks = tab.locator("#view g.block")
        tree = data["estimate"]["tree"]
        assert blocks.count() == len(tree)
        wide = [blocks.nth(index).locator("rect").bounding_box()["width"] for index in range(len(tree))]
        tokens = [node["tokens"][2] for node in tree]
        assert wide[0] / wide[1] == pytest.approx(tokens[0] / tokens[1], rel=0.15)
        assert tab.locator("#view g.block.shared").count() == sum(node["prompts"] > 1 for node in tree)
        blocks.nth(0).click()
        assert f"{tokens[0]:.0f} tokens, in 4 prompts" in tab.inner_text("#detail h2")
        assert ESSAY in tab.inner_text("#detail pre.prompt")
        # The time line of the run.
        view(tab, "Time line")
        bars = tab.locator("#view g.bar")
        assert bars.count() == 4
        bars.nth(0).click()
        assert tab.inner_text("#detail h2") == data["analysis"]["calls"][0]["site"]
        # Numbers, estimate beside actual.
        view(tab, "Numbers")
        row = tab.locator("#view tr", has_text="grade_essay[0].score#0").inner_text()
        (step,) = [one for one in data["analysis"]["steps"] if one["site"] == "grade_essay[0].score#0"]
        assert f"{step['usage']['prompt']} / {step['usage']['prompt']}" in row


@sgl.function
def born(s):  # type: ignore[no-untyped-def]
    s += "He was " + sgl.gen("year", regex="born (1[0-9]{3}|unknown)")
    s += sgl.gen("house", choices=["Gryffindor", "Slytherin"]) + sgl.gen("long", regex="([ab][cd]){600}")


@pytest.mark.browser
def test_automata_are_drawn(chromium: Any, tmp_path: Path) -> None:
    data = born.explain(OracleBackend()).to_json()
    with opened(chromium, tmp_path, page([data, judged(analyze=False)])) as tab:
        view(tab, "Automata")
        titles = tab.locator("#view h3").all_inner_texts()
        assert titles[0] == "year: /born (1[0-9]{3}|unknown)/: 6 states, 2 runs, 5 of 9 bytes forced"
        assert [title.split(":")[0] for title in titles] == ["year", "house", "long"]
        assert "too many edges to draw" in tab.inner_text("#view")
        assert tab.locator("#view svg").count() == 2
        assert tab.locator("#view svg").nth(0).locator("g.state").count() == 6
        assert tab.locator("#view svg").nth(0).locator("g.state.end").count() == 1
        assert tab.locator("#view svg").nth(0).locator("path.forced").count() == 2
        tab.locator("#view g.state").nth(1).click()
        rows = tab.locator("#detail tr").all_inner_texts()
        assert [row.split() for row in rows[1:]] == [["1", "6"], ["unknown", "12", "forced"]]


@pytest.mark.browser
def test_a_batch_shows_what_its_rows_share(chromium: Any, tmp_path: Path) -> None:
    @sgl.function
    def answer(s: Any, essay: str, question: str) -> None:
        s += "Essay: " + essay + "\n" + question + "\n"
        s += sgl.gen("answer", max_tokens=3)

    essays = ["bees are kept " * 5, "cats are not " * 4]
    rows = [{"essay": essays[n % 2], "question": f"{n}: why?"} for n in range(8)]
    backend = OracleBackend()
    explanation = answer.explain(backend, rows=rows)
    backend.close()
    assert "hoisted" in explanation.text()
    with opened(chromium, tmp_path, explanation.to_html()) as tab:
        view(tab, "Prefixes")
        blocks = [box.text_content() for box in tab.locator("#view g.block text").all()]
        shared = [text for text in blocks if " x " in text.partition(":")[0]]
        # An id is a character here: what all begin with, and each essay behind that.
        assert [text.partition(":")[0] for text in shared] == ["7 x 8", "71 x 4", "53 x 4"]
        assert len(blocks) == 3 + 8
        tab.locator("#view g.block").nth(0).click()
        assert "7 tokens, in 8 prompts" in tab.inner_text("#detail")
        assert "computed once, and shared by 7 more" in tab.inner_text("#detail")


@pytest.mark.browser
def test_graph_breaks_are_among_the_notes(chromium: Any, tmp_path: Path) -> None:
    data = open_function("examples/guess.py").explain(OracleBackend()).to_json()
    (place,) = data["breaks"]
    with opened(chromium, tmp_path, page([data])) as tab:
        view(tab, "Notes")
        said = tab.inner_text("#view")
        assert f"{place['loc']}: `Random(...)` is ordinary Python; declare it with `@sglc.tool`" in said


@pytest.mark.browser
def test_search_dims_what_does_not_fit(chromium: Any, tmp_path: Path) -> None:
    with opened(chromium, tmp_path, page([judged(analyze=False)])) as tab:
        tab.fill("#search", "creativity")
        assert tab.locator("#view g.node.dim").count() == 2  # the verdict has it in its prompt, too
        tab.fill("#search", "")
        assert tab.locator("#view g.node.dim").count() == 0


@pytest.mark.browser
def test_light_and_dark(chromium: Any, tmp_path: Path) -> None:
    """As the system has it, and the other way round by a click."""

    def paper(tab: Any) -> list[int]:
        color = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        return [int(part) for part in re.findall(r"\d+", color)[:3]]

    html = page([judged(analyze=False)])
    with opened(chromium, tmp_path, html, "dark") as tab:
        assert max(paper(tab)) < 60
        tab.click("#theme")
        assert min(paper(tab)) > 200
        tab.click("#theme")
        assert max(paper(tab)) < 60
    with opened(chromium, tmp_path, html) as tab:
        assert min(paper(tab)) > 200


@pytest.mark.browser
def test_without_a_run_there_is_no_time_line_and_several_programs_have_tabs(
    chromium: Any, tmp_path: Path
) -> None:
    data = judged(analyze=False)
    other = open_function("examples/tree.py").explain(OracleBackend(), goal="swim").to_json()
    with opened(chromium, tmp_path, page([data, other])) as tab:
        assert [one.strip() for one in tab.locator("#tabs button").all_inner_texts()] == [
            "Steps", "Prefixes", "Automata", "Numbers", "Notes",
        ]  # fmt: skip
        tab.get_by_role("tab", name="tree", exact=True).click()
        assert tab.locator("#view g.node").count() == 6
        assert tab.inner_text("#head h1").startswith("tree on local")
        # By the keyboard, as tabs are: one of them takes Tab, and arrows go round.
        for key, title in (("ArrowRight", "grade_essay"), ("ArrowLeft", "tree"), ("Home", "grade_essay")):
            tab.keyboard.press(key)
            assert tab.inner_text("#head h1").startswith(f"{title} on local")
        tab.keyboard.press("Tab")
        for key, title in (("ArrowLeft", "Notes"), ("ArrowLeft", "Numbers"), ("End", "Notes")):
            tab.keyboard.press(key)
            assert tab.evaluate("document.activeElement.innerText").strip() == title
            assert tab.locator("#tabs [aria-selected=true]").inner_text().strip() == title


def hostile() -> Explanation:
    @sgl.function
    def program(s: Any) -> None:
        s += ESSAY + "\u2028<img src=x onerror=alert(1)>"
        s += sgl.select("</title><script>alert(2)</script>", choices=["<i>", "</i>"])

    return program.explain("scripted:tests/explain/answers.json")


@pytest.mark.browser
def test_texts_are_never_markup(chromium: Any, tmp_path: Path) -> None:
    html = page([hostile().to_json()])
    assert html.count("</script>") == 2  # the page's own
    with opened(chromium, tmp_path, html) as tab:
        tab.locator("#view g.node").click()
        assert ESSAY in tab.inner_text("#detail pre.prompt")
        assert tab.locator("pre :not(span), h2 *, svg :not(g, title, rect, text, path)").count() == 0


def test_the_page_names_no_place_to_fetch_from() -> None:
    """No library, no font, no picture: the only addresses are names of XML."""
    html = page([judged(analyze=False)])
    addresses = re.findall(r"(?:https?:)?//[\w.]+[^\s\"']*", html)
    assert {
        address for address in addresses if "w3.org" not in address and not address.startswith("// ")
    } == set()
    assert "default-src 'none'" in html


def test_the_command_line_writes_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "answers.json"
    script.write_text(json.dumps([{"text": "3"}, {"text": "fair"}]))
    target = f"scripted:{script}"
    path = tmp_path / "page.html"
    assert main(["explain", "examples/judge.py", "--target", target, "--html", str(path)]) == 0
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "wave" in capsys.readouterr().out
    assert main(["compile", "examples/judge.py", "--target", target, "--emit", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")
    assert main(["explain", "examples/judge.py", "--html", str(tmp_path / "none" / "page.html")]) == 2
    assert "SGLC009" in capsys.readouterr().err
