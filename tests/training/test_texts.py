"""The sentences of a recipe: chosen by seed, and a part of them kept back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hardkuma.training import texts as texts_module
from hardkuma.training.recipe import TextRecipe
from hardkuma.training.texts import TextFile, load_training_texts, split_held_out


def test_a_random_choice_in_the_order_of_the_text(tmp_path: Path) -> None:
    lines = [f"sentence number {i} of the file" for i in range(50)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    said: list[str] = []
    recipe = TextRecipe(data=[str(tmp_path / "text.txt")], max_sentences=10, split_sentences=False)
    chosen = load_training_texts(recipe, said.append)
    assert len(chosen) == 10 and chosen == [line for line in lines if line in chosen]
    assert said == ["text: kept 50 of 50 sentences"]
    assert chosen == load_training_texts(recipe, said.append)
    recipe.seed = 1
    assert chosen != load_training_texts(recipe, said.append)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    lines = [" = Lobster = ", " The <unk> lives in the sea . ", " A lobster lives in the cold sea . "]
    (tmp_path / "wiki.data").write_text("\n".join(lines))
    said: list[str] = []
    chosen = load_training_texts(TextRecipe(data=[str(tmp_path / "wiki.data")], format="text"), said.append)
    assert chosen == ["A lobster lives in the cold sea."]
    assert said[1] == "text: left out: 1 headings, 1 sentences with <unk> (before that)"


@pytest.mark.parametrize(("number", "kept"), [(3, 3), (10, 10), (256, 20)])
def test_held_out_rows_are_a_random_part_of_at_most_a_fifth(number: int, kept: int) -> None:
    rows = np.arange(100) * 2
    train, held_out = split_held_out(rows, number, seed=0)
    assert len(held_out) == kept and sorted([*train, *held_out]) == rows.tolist()
    assert train.tolist() == sorted(train) and held_out.tolist() == sorted(held_out)
    assert held_out.tolist() != split_held_out(rows, number, seed=1)[1].tolist()


def test_texts_on_disk_are_the_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "CHUNK", 2)
    texts = ["Zürich", "", "東京は大きい", "half of a pair: \ud83d", "the last"]
    stored = TextFile(iter(texts), tmp_path)
    assert list(stored) == texts and len(stored) == 5 and not TextFile([])
    assert [stored[0], stored[-1], stored[1:4], stored[::-1]] == [texts[0], texts[-1], texts[1:4], texts[::-1]]
    chosen = stored.choose(np.array([4, 2]))
    del stored
    assert list(chosen) == [texts[4], texts[2]] and chosen[1] == texts[2]
    with pytest.raises(IndexError):
        chosen[2]
    assert not list(tmp_path.iterdir()), "the file has no name"
