"""Gates of pandas frames: what Spark would call, without Spark."""

from __future__ import annotations

import pytest

from hardkuma import load_released
from hardkuma.apps.ray import Outputs, pandas_gates, spark_schema

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def test_frames_keep_their_rows_columns_and_types() -> None:
    texts = ["Our flight to Oslo was delayed.", None, "Marie Curie moved to Paris."]
    first = pd.DataFrame({"id": pd.array([3, None, 5], dtype="Int64"), "text": texts}, index=[9, 9, 9])
    second = pd.DataFrame({"id": pd.array([6], dtype="Int64"), "text": [None]})
    outputs = Outputs(kinds=["gates", "terms", "anchor"], selector="entities", rate=0.4)
    one, other = pandas_gates(iter([first, second]), outputs)
    assert one[["id", "text"]].equals(first) and one.shape == (3, 9) and list(one.index) == [9, 9, 9]
    model = load_released()[0]
    for text, terms, anchor in zip(texts, one["terms"], one["anchor"], strict=True):
        expected = [] if text is None else model.gate_records([text], rate=0.4, selector="entities")[0]["spans"]
        assert list(terms) == [span["text"] for span in expected] and (anchor is None) == (text is None)
    assert other["reason"].tolist() == ["the row has no text"] and other["id"].tolist() == [6]


def test_of_all_selectors_numbers_have_names() -> None:
    frame = next(pandas_gates(iter([pd.DataFrame({"text": ["It rains in Oslo."]})]), Outputs(selector="all")))
    assert set(frame.loc[0, "rates"]) == {"meaning", "entities"}
    assert set(frame.loc[0, "words"][0]["probabilities"]) == {"meaning", "entities"}


def test_frames_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="there is no column 'text'; there are: body"):
        next(pandas_gates(iter([pd.DataFrame({"body": ["a"]})])))
    with pytest.raises(ValueError, match="spans"):
        next(pandas_gates(iter([pd.DataFrame({"text": ["a"], "spans": [1]})])))


def test_the_schema_in_the_words_of_spark() -> None:
    places = "start:int,end:int,probability:float"
    assert spark_schema(Outputs()) == (
        f"words array<struct<word:string,{places},selected:boolean>>, spans array<struct<text:string,{places}>>, "
        "rate double, windows int, reason string"
    )
    assert "rates map<string,double>" in spark_schema(Outputs(selector="all"))
