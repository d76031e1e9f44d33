"""What the page shows, as HTML, and what it saves. Nothing is encoded here: scores are selected from at any rate."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from html import escape
from itertools import groupby

from ...common.rendering.html import (
    carried_by,
    hue_class,
    legend,
    page_foot,
    page_head,
    pair_legend,
    render_record,
    render_side,
    render_verdict,
    render_words,
)
from ...scoring_hardkuma import Record, join_records
from ..search import Match
from .demo import MethodScores, as_fraction

# What the page calls selectors; others have their own name.
LABELS = {"meaning": "important words", "entities": "names"}
# Links below this share of the similarity are not drawn: a line says that two words match.
WEAKEST_LINK = 0.1
# In a long text words below this are not shaded: nobody would see it, and the page stays light.
FAINTEST = 0.05


def show_problem(message: str) -> str:
    """A message that stands where the result would.

    >>> show_problem("a < b")
    '<p class="hk-problem" role="alert">a &lt; b</p>'
    """
    return f'<p class="hk-problem" role="alert">{escape(message)}</p>'


def label(name: str) -> str:
    """What a selector is called on the page.

    >>> label("meaning"), label("nouns")
    ('important words', 'nouns')
    """
    return LABELS.get(name, name)


def show_text(records: Mapping[str, Record]) -> tuple[str, str]:
    """A shaded text and the table of its numbers, from the records of one selector or several by their names.

    >>> from hardkuma import ScoredText
    >>> record = ScoredText("Hi Bob", [(0, 2), (3, 6)], [0.1, 0.9], windows=1, threshold=0.5).select(rate=0.5)
    >>> text, table = show_text({"names": record})
    >>> "1 of 2 words: <bdi>Bob 0.90</bdi>" in text, "<td>0.900</td><td>selected</td>" in table
    (True, True)
    """
    record = merge_selectors(records)
    return render_record(record) + explain_colours(records), show_numbers(record)


def save_text(records: Mapping[str, Record], kind: str) -> dict[str, str]:
    """What a download button saves, "json" or "html": name, type and content of the file.

    Args:
        records: by the names of the selectors that are shown. Of several the JSON is that of `hardkuma gates --selector
            all`, and the HTML has a hue for each, as on the page.

    >>> from hardkuma import ScoredText
    >>> record = ScoredText("Hi", [(0, 2)], [0.1], windows=1, threshold=0.5).select(rate=0.5)
    >>> save_text({"names": record}, "json")["name"]
    'gates.json'
    """
    if kind == "json":
        record = next(iter(records.values())) if len(records) == 1 else join_records(records)
        content = json.dumps(record, ensure_ascii=False, indent=2) + "\n"
        return {"name": "gates.json", "type": "application/json", "content": content}
    content = page_head("HardKuma gates", explain_colours(records)) + render_record(merge_selectors(records)) + page_foot()
    return {"name": "gates.html", "type": "text/html", "content": content}


def show_numbers(record: Record) -> str:
    """Every word with its probability in a table, for eyes that do not read shades.

    >>> word = {"word": "Bob", "probability": 0.9, "selected": True}
    >>> "<td><bdi>Bob</bdi></td><td>0.900</td><td>selected</td>" in show_numbers({"words": [word]})
    True
    """
    rows = "".join(
        f"<tr><td><bdi>{escape(word['word'])}</bdi></td><td>{word['probability']:.3f}</td>"
        f"<td>{'selected' if word['selected'] else ''}</td></tr>"
        for word in record["words"]
    )
    head = '<thead><tr><th scope="col">word</th><th scope="col">probability</th><th scope="col"></th></tr></thead>'
    table = f'<table class="hk-table">{head}<tbody>{rows}</tbody></table>'
    return f'<div class="hk-scroll" tabindex="0" role="region" aria-label="probabilities">{table}</div>'


def merge_selectors(records: Mapping[str, Record]) -> Record:
    """One record of several selectors, to be drawn: a word is selected if any of them selects it.

    The "probability" of a word is the largest, and its "hue" says whose it is. "spans" do not overlap: what several
    selectors select has the "hues" of all of them. "listed" are the spans as each selector has them. There is a "reason"
    only where none of them selects a word.

    >>> from hardkuma import ScoredText
    >>> scored = {"a": [0.9, 0.1], "b": [0.7, 0.8]}
    >>> records = {name: ScoredText("Nobel Prize", [(0, 5), (6, 11)], row, 1, 0.5).select() for name, row in scored.items()}
    >>> [(span["text"], span["hues"]) for span in merge_selectors(records)["spans"]]
    [('Nobel', [(0, 0.9), (1, 0.8)]), ('Prize', [(1, 0.8)])]
    """
    if len(records) == 1:
        return next(iter(records.values()))
    record = join_records(records)
    hues = {name: hue for hue, name in enumerate(records)}
    words = []
    for word in record["words"]:
        best = max(word["probabilities"], key=word["probabilities"].__getitem__)
        note = ", ".join(f"{label(name)} {value:.2f}" for name, value in word["probabilities"].items())
        shade = {"probability": word["probabilities"][best], "hue": hues[best], "note": note}
        words.append(word | shade | {"selected": bool(word["selected"])})
    spans = []
    covering = _covering(record)
    for numbers, inside in groupby(range(len(words)), key=covering.__getitem__):
        if not numbers:
            continue
        run, chosen = list(inside), [record["spans"][number] for number in numbers]
        start, end = words[run[0]]["start"], words[run[-1]]["end"]
        shades = [(hues[span["selector"]], span["probability"]) for span in chosen]
        note = ", ".join(f"{label(span['selector'])} {span['probability']:.2f}" for span in chosen)
        piece = {"text": record["text"][start:end], "start": start, "end": end, "hue": shades[0][0], "hues": shades}
        spans.append(piece | {"probability": max(share for _, share in shades), "note": note})
    listed = [span | {"selector": label(span["selector"])} for span in record["spans"]]
    return {**record, "words": words, "spans": spans, "listed": listed}


def _covering(record: Record) -> list[tuple[int, ...]]:
    """For every word of a joined record the numbers of the spans that it is in."""
    starts = [word["start"] for word in record["words"]]
    covering: list[tuple[int, ...]] = [()] * len(starts)
    for number, span in enumerate(record["spans"]):
        for i in range(bisect_left(starts, span["start"]), bisect_left(starts, span["end"])):
            covering[i] += (number,)
    return covering


def explain_colours(names: Collection[str]) -> str:
    """What hue, shade and outline mean; hues where there are several selectors.

    >>> explain_colours(["a", "b"]).startswith('<p class="hk-legend"><span><span class="hk-span hk-hue0"')
    True
    """
    if len(names) == 1:
        return legend()
    shown = (
        f'<span class="hk-span {hue_class(hue)}" style="--share:90%">{escape(label(name))}</span>'
        for hue, name in enumerate(names)
    )
    return f'<p class="hk-legend"><span>{" ".join(shown)}</span></p>{legend()}'


def show_pair(pair: Record) -> str:
    """Two texts with what links them, and the numbers of the words that the page joins by lines.

    >>> def side(text):
    ...     word = {"word": text, "start": 0, "end": 3, "fall": 0.4, "carries": True, "probability": 0.5, "selected": False}
    ...     return {"text": text, "words": [word], "spans": [], "rate": 0.0, "windows": 1, "truncated": False}
    >>> without = {"carrying": 0.1, "lowest": 0.5, "random": 0.4, "gates": 0.2}
    >>> checks = {"similarity_without": without, "similarity_of_carrying": 0.9, "faithful": True}
    >>> links = [{"a": 0, "b": 0, "strength": 0.25}, {"a": 0, "b": 0, "strength": 0.01}]
    >>> pair = {"similarity": 0.5, "chance": 0.3, "explained": True, "reason": None, "notes": [], "links": links}
    >>> pair |= {"a": side("cat"), "b": side("Cat"), "faithfulness": checks}
    >>> 'data-links="[[0, 0, 0.5]]"' in show_pair(pair)
    True
    """
    shares = [[link["a"], link["b"], round(link["strength"] / pair["similarity"], 3)] for link in pair["links"]]
    drawn = [link for link in shares if link[2] >= WEAKEST_LINK] if pair["explained"] else []
    texts = "".join(render_side(pair, name) for name in "ab")
    captions = " ".join(
        f'<p class="hk-caption">{title} text {carried_by(pair[name])}.</p>'
        for title, name in (("First", "a"), ("Second", "b"))
    )
    if drawn:
        captions += '<p class="hk-caption">A line joins two words that match each other, as thick as that is strong.</p>'
    return (
        f'{render_verdict(pair)}<div class="linked hk-record" data-links="{escape(json.dumps(drawn))}">{texts}</div>'
        f"{pair_legend() + captions if pair['similarity'] > pair['chance'] else ''}"
    )


def show_comparison(results: Sequence[MethodScores], percent: float | None = None) -> str:
    """Methods side by side, the gates first, each with as many words marked as the gates select.

    >>> from hardkuma import ScoredText
    >>> scored = ScoredText("Hi Bob", [(0, 2), (3, 6)], [0.1, 0.9], windows=1, threshold=0.5)
    >>> gates = MethodScores("Gates", 1, 0.03, scored, [0.1, 0.9])
    >>> html = show_comparison([gates, MethodScores("Norm", 2, 0.01, scored, [3, 5])], 50)
    >>> html.count("<h3>"), "0.01 s, 2 passes of the encoder; 1 of 1 words in common with the gates" in html
    (2, True)
    """
    sections = []
    selected_by_gates: set[int] = set()
    for number, result in enumerate(results):
        if number == 0:
            record = result.scored.select(rate=as_fraction(percent))
        elif selected_by_gates:
            record = result.scored.select(rate=len(selected_by_gates) / len(result.raw))
        else:
            record = result.scored.select(threshold=1.0)  # none, as the gates
        selected = {i for i, word in enumerate(record["words"]) if word["selected"]}
        caption = f"{result.seconds:.2f} s, {result.passes} pass{'' if result.passes == 1 else 'es'} of the encoder"
        if number == 0:
            selected_by_gates = selected
        else:
            caption += f"; {len(selected & selected_by_gates)} of {len(selected)} words in common with the gates"
        if result.missing:
            caption += f"; {result.missing} words are beyond the encoder's length and have no score"
        words = [word | {"note": f"score {raw:.3g}"} for word, raw in zip(record["words"], result.raw, strict=True)]
        text = render_words(record["text"], words, record["spans"])
        sections.append(
            f'<section class="hk-record"><h3>{escape(result.title)}</h3>{text}'
            f'<p class="hk-caption">{escape(caption)}</p></section>'
        )
    meaning = "rank of a word, in the gates' own shades: last"
    return f'<div class="hk-grid">{"".join(sections)}</div>{legend(meaning, "first", "as many as the gates select")}'


def show_matches(number: int, matches: Sequence[Match]) -> str:
    """The passages nearest to a question, each with the words that carry the match.

    Args:
        number: of all passages.
        matches: with their pairs.

    >>> from hardkuma.apps.search import Passage
    >>> words = [{"word": "Rain", "start": 0, "end": 4, "fall": 0.3, "carries": True}]
    >>> said = {"similarity": 0.5, "chance": 0.2, "explained": True, "reason": None, "notes": []}
    >>> match = Match(Passage("Rain fell.", "", 7), 0.5, said | {"b": {"text": "Rain fell.", "words": words}})
    >>> html = show_matches(9, [match])
    >>> "line 7" in html, ">Rain</mark></span> fell." in html
    (True, True)
    """
    near: list[str] = []
    far: list[str] = []
    chance = 0.0
    for match in matches:
        if (pair := match.pair) is None:
            raise ValueError("show_matches needs matches whose words were asked for.")
        chance = pair["chance"]
        related = pair["similarity"] > chance
        reason = f'<p class="hk-caption">{escape(pair["reason"])}.</p>' if related and not pair["explained"] else ""
        (near if related else far).append(
            f'<li class="hk-record"><p class="score"><b>{match.similarity:.2f}</b> line {match.passage.row}</p>'
            f"<div>{render_side(pair, 'b', differences=False)}{reason}</div></li>"
        )
    html = '<p class="hk-verdict"><b>Nothing here answers that.</b></p>'
    if near:
        html = f'<p class="hk-verdict">The nearest of {number:,} passages.</p>'
        html += f'<ol class="matches">{"".join(near)}</ol>{pair_legend(differences=False)}'
    if far:
        html += f'<p class="hk-caption">No closer than unrelated texts may be ({chance:.2f}):</p>'
        html += f'<ol class="matches far">{"".join(far)}</ol>'
    return html


def show_document(records: Mapping[str, Record], terms: Sequence[tuple[str, Record]]) -> str:
    """A long text as a heat map, with its key phrases at the side.

    Args:
        records: by the names of the selectors that are shown; of several each has its hue.
        terms: each with the name of its selector.

    >>> from hardkuma import ScoredText
    >>> record = ScoredText("Hi Bob", [(0, 2), (3, 6)], [0.01, 0.9], windows=1, threshold=0.5).select()
    >>> html = show_document({"a": record}, [("a", {"text": "Bob", "count": 3, "example": "Hi Bob"})])
    >>> html.count("<mark"), '<button type="button" data-term="Bob" title="Hi Bob">Bob</button> <span>3</span>' in html
    (1, True)
    """
    hues = {name: hue for hue, name in enumerate(records)} if len(records) > 1 else {}
    record = merge_selectors(records)
    words = [word for word in record["words"] if word["selected"] or word["probability"] >= FAINTEST]
    listed = "".join(
        f'<li><button type="button" data-term="{escape(term["text"])}" title="{escape(" ".join(term["example"].split()))}">'
        f"{_swatch(hues.get(name))}{escape(' '.join(term['text'].split()))}</button> <span>{term['count']:,}</span></li>"
        for name, term in terms
    )
    selected = sum(word["selected"] for word in words)
    count = f"{selected:,} of {len(record['words']):,} words selected. Read sentence by sentence."
    listed = f"<ol>{listed}</ol>" if listed else "<p>No phrase was found.</p>"
    return (
        f'<p class="hk-verdict">{count}</p>{explain_colours(records)}<div class="document">'
        f'<div class="heat hk-record" tabindex="0" role="region" aria-label="The text">'
        f"{render_words(record['text'], words, record['spans'])}</div>"
        f'<aside class="terms"><h3>Key phrases</h3>{listed}</aside></div>'
    )


def _swatch(hue: int | None) -> str:
    """A dot in the hue of a selector; nothing where there is one selector alone."""
    return "" if hue is None else f'<i class="swatch {hue_class(hue)}"></i>'
