"""The command line: every key as an option, forms of an option, help, errors."""

from __future__ import annotations

import pytest

from hardkuma.training.arguments import Arguments, parse_arguments
from hardkuma.training.encoder.recipe import EncoderRecipe
from hardkuma.training.objectives.settings import OBJECTIVES
from hardkuma.training.recipe import Recipe
from hardkuma.training.settings import settings_of


def parse(*words: str) -> Arguments:
    arguments = parse_arguments(words)
    assert isinstance(arguments, Arguments)
    return arguments


def test_values_are_read_as_yaml() -> None:
    words = ["--train.learning_rate", "1e-4", "--selectors.part.target_rate=[0.1, 2e-1]", "--max-sentences", "5"]
    expected = {"max_sentences": 5, "train.learning_rate": 0.0001, "selectors.part.target_rate": [0.1, 0.2]}
    assert parse(*words).overrides == expected
    assert parse("--data", "[a.txt, b c.txt]").overrides == {"data": ["a.txt", "b c.txt"]}
    assert parse("--split_sentences", "false", "--surface=no").overrides == {"split_sentences": False, "surface": False}
    assert parse("--dev", "null", "--selectors.entities", "null").overrides == {"dev": None, "selectors.entities": None}
    whole = parse("--selectors.meaning.train", "{objective: removal, epochs: 2}").overrides
    assert whole == {"selectors.meaning.train": {"objective": "removal", "epochs": 2}}


def test_a_key_that_holds_text_keeps_the_word() -> None:
    words = ["--output", "2024", "--column", "- a", "--encoder=@me/x", "--dev", "'a b'"]
    assert parse(*words).overrides == {"encoder": "@me/x", "column": "- a", "dev": "a b", "output": "2024"}
    for path in ("train", "selectors.meaning.train"):
        assert parse(f"--{path}.mixed_precision", "no").overrides == {f"{path}.mixed_precision": "no"}
    assert parse("--selectors.meaning.train.checkpoint", "2024").overrides == {"selectors.meaning.train.checkpoint": "2024"}


@pytest.mark.parametrize("name", [key.name for key in settings_of(Recipe)])
def test_every_key_is_an_option_in_four_forms(name: str) -> None:
    dashed = name.replace("_", "-")
    forms = [[f"--{name}", "null"], [f"--{name}=null"], [f"--{dashed}", "null"], [f"--{dashed}=null"]]
    given = [parse(*form).overrides for form in forms]
    assert all(list(overrides) == [name] for overrides in given) and all(overrides == given[0] for overrides in given)


def test_dashes_in_paths_but_not_in_names_of_selectors() -> None:
    words = ["--train.batch-size", "4", "--selectors.go-went.hidden-size=8", "--selectors.go-went.train.log-every", "2"]
    assert parse(*words).overrides == {
        "train.batch_size": 4,
        "selectors.go-went.hidden_size": 8,
        "selectors.go-went.train.log_every": 2,
    }


def test_negative_values_and_the_last_of_two() -> None:
    words = ["--model.lambda_kl", "-1e-3", "--selectors.a.layer", "-1", "--train.warmup", "-4", "--held_out=-5"]
    expected = {"held_out": -5, "model.lambda_kl": -0.001, "selectors.a.layer": -1, "train.warmup": -4}
    assert parse(*words).overrides == expected
    assert parse("--seed", "2", "--seed", "3").overrides == {"seed": 3}
    assert parse("--train.epochs", "2", "--train.epochs", "3").overrides == {"train.epochs": 3}


def test_recipe_and_flags_stand_anywhere() -> None:
    assert parse().recipe == "default"
    for words in (
        ["parts", "--resume", "--seed", "2"],
        ["--seed", "2", "parts", "--resume"],
        ["--resume", "parts", "--seed=2"],
    ):
        assert parse(*words) == Arguments("parts", {"seed": 2}, True, None)
    assert parse("--overwrite").overwrite and not parse().overwrite
    assert parse("--push-to-hub", "me/x").push_to_hub == parse("--push_to_hub=me/x").push_to_hub == "me/x"
    assert parse("--model", "{view: input}", "--model.lambda-tv", "0.3").overrides == {
        "model": {"view": "input"},
        "model.lambda_tv": 0.3,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["parts", "epochs"], "expected --key value, got 'epochs'"),
        (["--epochs", "3"], "unknown recipe key 'epochs': it is now .*--train.epochs on the command line"),
        (["--max-sentenses=3"], "unknown recipe key 'max_sentenses': did you mean 'max_sentences'"),
        (["--resum"], "unknown recipe key 'resum'"),
        (["--data", "[a"], "is not valid YAML"),
    ],
)
def test_what_makes_no_sense(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_arguments(words)


@pytest.mark.parametrize("words", [["--seed"], ["--train.epochs"], ["--seed", "--held_out", "3"]])
def test_an_option_without_its_value(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(words, "hardkuma train")
    said = f"hardkuma train: argument {words[0]}: expected one argument. See hardkuma train --help\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["parts", "--seed", "3", "--help"]])
def test_help_has_the_manual_and_every_key(words: list[str]) -> None:
    text = parse_arguments(words, "hardkuma train", "The manual: 100% of it.")
    assert isinstance(text, str) and "hardkuma train [RECIPE]" in text and "The manual: 100% of it." in text
    flat = " ".join(text.split())
    for key in settings_of(Recipe):
        assert f"--{key.name} " in flat and key.rule.help in flat, key.name
    for name, cls in OBJECTIVES.items():
        assert f" {name}: " in flat
        assert all(f" {key.name} " in flat and key.rule.help in flat for key in settings_of(cls)), name
    assert "batch_size INT sentences of the global batch, over all processes (default: 64)" in flat
    assert "--cache_type float16|bfloat16|float32" in flat and "(default: null)" in flat
    assert "--model.NAME" in flat and "--train.KEY" in flat and "configuration_hardkuma.py" in flat


def test_recipes_of_an_encoder_have_no_selectors() -> None:
    text = parse_arguments(["--help"], cls=EncoderRecipe, default="simcse")
    assert isinstance(text, str) and "--temperature" in text and "--train.KEY" not in text
    for word in ("--train.epochs", "--model.view"):
        with pytest.raises(ValueError, match="unknown recipe key"):
            parse_arguments([f"{word}=3"], cls=EncoderRecipe)
