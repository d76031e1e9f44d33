"""Records: what every door answers, of one selector or of several side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Record = dict[str, Any]

ALL = "all"  # what `selector=` takes for a record with the gates of all selectors


def join_records(records: Mapping[str, Record]) -> Record:
    """One record of a text with the gates of several selectors, from the records of each by its name.

    Returns:
        `{"text", "words": [{"word", "start", "end", "probabilities": {NAME: number}, "selected": [NAME, ...]}],
        "spans": [{"text", "start", "end", "probability", "selector"}], "rates": {NAME: number}, "windows"}`

    >>> go = {"word": "Go", "start": 0, "end": 2, "probability": 0.9, "selected": True}
    >>> one = {"text": "Go", "words": [go], "spans": [{"text": "Go", "start": 0, "end": 2}], "rate": 1.0, "windows": 1}
    >>> record = join_records({"verbs": one, "others": one})
    >>> record["words"][0]["probabilities"], record["words"][0]["selected"], len(record["spans"])
    ({'verbs': 0.9, 'others': 0.9}, ['verbs', 'others'], 2)
    """
    first = next(iter(records.values()))
    words = [
        {
            **{key: word[key] for key in ("word", "start", "end")},
            "probabilities": {name: record["words"][i]["probability"] for name, record in records.items()},
            "selected": [name for name, record in records.items() if record["words"][i]["selected"]],
        }
        for i, word in enumerate(first["words"])
    ]
    spans = [{**span, "selector": name} for name, record in records.items() for span in record["spans"]]
    rates = {name: record["rate"] for name, record in records.items()}
    joined = {"text": first["text"], "words": words, "spans": spans, "rates": rates, "windows": first["windows"]}
    return joined if spans else {**joined, "reason": first["reason"]}


def split_record(record: Record) -> dict[str, Record]:
    """The record of each selector, by its name, from one that `join_records` made.

    The "reason" of a selector that selects nothing where another one does is not in the joined record; it has words then,
    so that there is one reason only.

    >>> go = {"word": "Go", "start": 0, "end": 2, "probability": 0.9, "selected": True}
    >>> one = {"text": "Go", "words": [go], "spans": [{"text": "Go", "start": 0, "end": 2}], "rate": 1.0, "windows": 1}
    >>> split_record(join_records({"verbs": one}))["verbs"] == one
    True
    """
    parts: dict[str, Record] = {}
    for name, rate in record["rates"].items():
        words = [
            {
                **{key: word[key] for key in ("word", "start", "end")},
                "probability": word["probabilities"][name],
                "selected": name in word["selected"],
            }
            for word in record["words"]
        ]
        spans = [
            {key: value for key, value in span.items() if key != "selector"}
            for span in record["spans"]
            if span["selector"] == name
        ]
        parts[name] = {"text": record["text"], "words": words, "spans": spans, "rate": rate, "windows": record["windows"]}
        if not spans:
            parts[name]["reason"] = record.get("reason", "no word is more probable than the threshold")
    return parts
