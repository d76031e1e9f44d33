"""Gates as columns of a table, and of pandas frames as Spark would call for them."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hardkuma import HardKumaModel, load_released
from hardkuma.apps.ray import Outputs, add_gates, pandas_gates, spark_schema

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

TEXTS = ["Our flight to Oslo was delayed by snow.", None, "", "Marie Curie moved to Paris.", "\ud800 half", "..."]


@pytest.fixture(scope="module")
def released() -> HardKumaModel:
    return load_released()[0]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    texts = [text if text is None else text.encode("utf-8", "replace").decode() for text in TEXTS]
    return pa.table({"id": list(range(len(texts))), "text": texts})


def test_columns_are_the_records_row_for_row(released: HardKumaModel, table: pa.Table) -> None:
    found = add_gates(released, table, Outputs(add=["gates", "terms"], selector="entities", rate=0.3))
    assert found.column_names == [
        "id",
        "text",
        "words",
        "spans",
        "rate",
        "windows",
        "reason",
        "note",
        "kept",
        "lost",
        "terms",
    ]
    assert found.select(["id", "text"]).equals(table)
    for row in found.to_pylist():
        if row["text"] is None:
            assert row["reason"] == "the row has no text" and row["words"] == row["spans"] == row["terms"] == []
            continue
        record = released.gate_records([row["text"]], rate=0.3, selector="entities")[0]
        assert [word["word"] for word in row["words"] if word["selected"]] == [
            word["word"] for word in record["words"] if word["selected"]
        ]
        assert row["terms"] == [span["text"] for span in record["spans"]]
        assert [word["probability"] for word in row["words"]] == pytest.approx(
            [word["probability"] for word in record["words"]], abs=1e-5
        )


def test_a_dataset_of_datasets(released: HardKumaModel, table: pa.Table) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset(table).with_format("arrow")
    mapped = dataset.map(partial(add_gates, released, outputs=Outputs(add=["terms"])), batched=True, batch_size=4)
    expected = add_gates(released, table, Outputs(add=["terms"]))
    assert mapped.with_format(None)[:] == expected.to_pydict()


def test_embeddings_are_those_of_the_model(released: HardKumaModel, table: pa.Table) -> None:
    found = add_gates(released, table, Outputs(add=["anchor", "rationale"], rate=0.5, batch_size=2)).to_pylist()
    inputs = released.tokenizer([TEXTS[0]], return_tensors="pt")
    with torch.no_grad():
        out = released(**inputs, selector="meaning", rate=0.5)
    assert found[0]["anchor"] == pytest.approx(out.anchor_embedding[0].tolist(), abs=1e-5)
    assert found[0]["rationale"] == pytest.approx(out.rationale_embedding[0].tolist(), abs=1e-5)
    assert found[1]["anchor"] is None


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"body": ["a"]}, {}, "there is no column 'text'; there are: body"),
        ({"text": ["a"], "spans": [1]}, {}, "the input has a column 'spans' already"),
        ({"text": [1]}, {}, "holds int64, not text"),
    ],
)
def test_tables_that_do_not_fit(released: HardKumaModel, columns: dict, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        add_gates(released, pa.table(columns), Outputs(**options))


def test_unknown_columns_and_rates_are_said_at_once() -> None:
    with pytest.raises(ValueError, match="add must be one of gates, terms, anchor, rationale"):
        Outputs(add=["sums"])
    with pytest.raises(ValueError, match="rate must be a fraction"):
        Outputs(rate=20)
    with pytest.raises(ValueError, match="rationale embeddings are those of one selector"):
        Outputs(add=["gates", "rationale"], selector="all")


def test_a_column_that_is_empty_in_every_row(released: HardKumaModel) -> None:
    table = pa.table({"text": pa.nulls(2)})
    assert add_gates(released, table)["reason"].to_pylist() == ["the row has no text"] * 2


def test_frames_keep_their_rows_columns_and_types() -> None:
    texts = ["Our flight to Oslo was delayed.", None, "Marie Curie moved to Paris."]
    first = pd.DataFrame({"id": pd.array([3, None, 5], dtype="Int64"), "text": texts}, index=[9, 9, 9])
    second = pd.DataFrame({"id": pd.array([6], dtype="Int64"), "text": [None]})
    outputs = Outputs(add=["gates", "terms", "anchor"], selector="entities", rate=0.4)
    one, other = pandas_gates(iter([first, second]), outputs)
    assert one[["id", "text"]].equals(first) and one.shape == (3, 12) and list(one.index) == [9, 9, 9]
    model = load_released()[0]
    for text, terms, anchor in zip(texts, one["terms"], one["anchor"], strict=True):
        expected = [] if text is None else model.gate_records([text], rate=0.4, selector="entities")[0]["spans"]
        assert list(terms) == [span["text"] for span in expected] and (anchor is None) == (text is None)
    assert other["reason"].tolist() == ["the row has no text"] and other["id"].tolist() == [6]


def test_of_all_selectors_numbers_have_names() -> None:
    frame = next(pandas_gates(iter([pd.DataFrame({"text": ["It rains in Oslo."]})]), Outputs(selector="all")))
    assert set(frame.loc[0, "rates"]) == {"meaning", "entities"}
    assert set(frame.loc[0, "words"][0]["probabilities"]) == {"meaning", "entities"}


def test_a_frame_is_a_table_too(released: HardKumaModel, table: pa.Table) -> None:
    outputs = Outputs(column="body", add=["terms"], selector="entities")
    frame = table.to_pandas().rename(columns={"text": "body"})
    found = add_gates(released, frame, outputs)
    expected = add_gates(released, table, Outputs(add=["terms"], selector="entities"))["terms"].to_pylist()
    assert found[["id", "body"]].equals(frame) and [list(terms) for terms in found["terms"]] == expected
    for wrong in ({"text": ["a"]}, ["a"], "a text"):
        with pytest.raises(ValueError, match=r"takes a pyarrow.Table or a pandas.DataFrame, got a (dict|list|str)"):
            add_gates(released, wrong)
    with pytest.raises(ValueError, match=r"there are: id, body\. Name the one of the texts: Outputs\(column=...\)"):
        add_gates(released, frame)


def test_frames_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="there is no column 'text'; there are: body"):
        next(pandas_gates(iter([pd.DataFrame({"body": ["a"]})])))
    with pytest.raises(ValueError, match="spans"):
        next(pandas_gates(iter([pd.DataFrame({"text": ["a"], "spans": [1]})])))


def test_the_schema_in_the_words_of_spark() -> None:
    places = "start:int,end:int,probability:float"
    assert spark_schema(Outputs()) == (
        f"words array<struct<word:string,{places},selected:boolean>>, spans array<struct<text:string,{places}>>, "
        "rate double, windows int, reason string, note string, kept double, lost double"
    )
    assert "rates map<string,double>" in spark_schema(Outputs(selector="all"))
