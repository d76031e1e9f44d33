"""The report: complete, self-contained, and every text in it is text - also in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hardkuma.evaluation.benchmark import run_benchmark
from hardkuma.evaluation.report import line_plot, report_html

from ..browser import dump, needs_chromium
from .conftest import SCRIPT, join_words, make_encoder, write_conll

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    options = {"bootstrap": 5, "expensive_sample": 5, "faithfulness_sample": 2, "examples": 5}
    command = f"hardkuma benchmark --data {SCRIPT}"
    data, methods = write_conll(folder / "toy.conll"), ["random", "norm", "capitals"]
    return run_benchmark(data, methods, 5, output=folder / "out", encoder=make_encoder(), command=command, **options).report


class Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(page: str) -> Collector:
    collector = Collector()
    collector.feed(page)
    return collector


def test_everything_is_text_and_nothing_is_fetched(report: Path) -> None:
    page = report.read_text(encoding="utf-8")
    parsed = parse(page)
    assert "script" not in parsed.tags
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]
    links = [value for name, value in parsed.attributes if name in ("href", "src", "xlink:href")]
    assert links and all(link.startswith("#") for link in links)
    assert "@import" not in page and not re.search(r"url\((?!#)", page)
    assert SCRIPT in "".join(parsed.text)
    assert parsed.tags.count("svg") == 3 and parsed.tags.count("details") == 4
    for title in ("Entity words", "Entity words that are easily missed", "Faithfulness"):
        assert f"<h3>{title}</h3>" in page and f'aria-label="{title}"' in page
    assert parsed.tags.count("table") == 3 and "4 sentences" not in page and "5 sentences, 31 words" in page
    # Ids are unique over all plots.
    ids = [value for name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_every_field_is_escaped(report: Path) -> None:
    from hardkuma.evaluation.results import load_result

    results = [load_result(path) for path in sorted((report.parent / "results").glob("*/*.json"))]
    for result in results:
        result.title = f"{result.method}{SCRIPT}\"'><img src=x onerror=alert(1)>"
        result.corpus = f"\"'><img src=x onerror=alert(1)>{SCRIPT}"
        result.versions = {SCRIPT: SCRIPT}
        result.role = f'"><b>{SCRIPT}'
    sentence = join_words([SCRIPT, '"quoted"'], [f"B-{SCRIPT}", "O"])
    examples = {result.corpus: [sentence] for result in results}
    for result in results:
        result.examples = [{"scores": [1.0, 0.0], "selected": None}]
    parsed = parse(report_html(results, examples, SCRIPT, [SCRIPT]))
    assert {"script", "img"}.isdisjoint(parsed.tags)
    assert not [name for name, _ in parsed.attributes if name == "onerror"]


def test_of_many_methods_the_best_are_drawn(report: Path) -> None:
    from hardkuma.evaluation.results import load_result

    norm = load_result(next((report.parent / "results").glob("*/norm.json")))
    many = []
    for number in range(25):
        metrics = {"average_precision": {"value": number / 25}, "sufficiency": {"value": -number}}
        many.append(replace(norm, method=f"m{number}", title=f"m{number}$", metrics=metrics))
    page = report_html(many, {}, "command")
    captions = ["The 6 best by average precision, of 25.", "The 6 best by sufficiency, of 25."]
    for svg, caption, best in zip(page.split("<svg")[1:], captions, (range(19, 25), range(6)), strict=False):
        assert caption in svg and {f"m{number}" for number in best} == set(re.findall(r">(m\d+)\$<", svg))


def test_a_plot_follows_the_page() -> None:
    line = line_plot({"one <b>": ([0, 1], [0, 1])}, "x <b>", "y", "a & <b>")
    assert line.startswith("<svg") and "currentColor" in line and "#010203" not in line
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]+"', "", line)
    assert "<b>" not in line and 'aria-label="a &amp; &lt;b&gt;"' in line


@needs_chromium
def test_in_a_browser_a_script_in_the_corpus_is_text(report: Path, tmp_path: Path) -> None:
    page = report.read_text(encoding="utf-8")
    # Escaping alone must do, without the policy that would block scripts anyway.
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    witness = tmp_path / "witness.html"
    witness.write_text(page.replace("</body>", f"{SCRIPT}</body>"), encoding="utf-8")
    plain = tmp_path / "plain.html"
    plain.write_text(page, encoding="utf-8")
    assert "<title>broken</title>" in dump(witness, tmp_path / "a")  # a script that is not escaped does run here
    shown = dump(plain, tmp_path / "b")
    assert "<title>HardKuma benchmark</title>" in shown
    assert "<script" not in shown and "&lt;script&gt;document.title='broken'&lt;/script&gt;" in shown


@needs_chromium
def test_in_a_browser_it_fits_a_phone(report: Path, tmp_path: Path) -> None:
    """In a frame of 390 pixels nothing but the table's own scroll area is wider than the page."""
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", report.read_text(encoding="utf-8"))
    wide = page.replace("<main>", '<main><div style="width:2000px">too wide</div>')
    measure = "const e = document.querySelector('iframe').contentDocument.documentElement; "
    measure += "document.title = e.scrollWidth > e.clientWidth ? 'too wide' : 'fits'"
    framed = tmp_path / "framed.html"
    for width, content, expected in ((390, page, "fits"), (1200, page, "fits"), (390, wide, "too wide")):
        frame = f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{escape(content)}"></iframe>'
        script = f'<script>addEventListener("load", () => {{ {measure} }})</script>'
        framed.write_text(f"<body>{frame}{script}", encoding="utf-8")
        assert f"<title>{expected}</title>" in dump(framed, tmp_path / f"{width}{expected}"), width


def test_without_matplotlib_the_report_says_so(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hardkuma.evaluation.results import load_result

    monkeypatch.setattr("hardkuma.evaluation.report.available", lambda name: False)
    page = report_html([load_result(path) for path in sorted((report.parent / "results").glob("*/*.json"))], {}, "command")
    assert "The plots need matplotlib" in page and "<svg" not in page and "<table>" in page
