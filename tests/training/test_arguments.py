"""The command line: every key as an option, forms of an option, help, errors."""

from __future__ import annotations

import pytest

from hardkuma.training.arguments import Arguments, parse_arguments
from hardkuma.training.recipe import recipe_keys


def parse(*words: str) -> Arguments:
    arguments = parse_arguments(words)
    assert isinstance(arguments, Arguments)
    return arguments


def test_values_are_read_as_yaml() -> None:
    words = ["--learning_rate", "1e-4", "--model.lambda_s=[0.1, 2e-1]", "--max-steps", "5", "--dev", "null"]
    expected = {"learning_rate": "1e-4", "model.lambda_s": [0.1, 0.2], "max_steps": 5, "dev": None}
    assert parse(*words).overrides == expected
    assert parse("--data", "[a.txt, b c.txt]").overrides == {"data": ["a.txt", "b c.txt"]}
    assert parse("--split_sentences", "false", "--surface=no").overrides == {"split_sentences": False, "surface": False}


def test_a_key_that_holds_text_keeps_the_word() -> None:
    words = ["--mixed_precision", "no", "--output", "2024", "--column", "- a", "--encoder=@me/x", "--dev", "'a b'"]
    expected = {"encoder": "@me/x", "column": "- a", "dev": "a b", "mixed_precision": "no", "output": "2024"}
    assert parse(*words).overrides == expected


@pytest.mark.parametrize("name", [key.name for key in recipe_keys()])
def test_every_key_is_an_option_in_four_forms(name: str) -> None:
    dashed = name.replace("_", "-")
    forms = [[f"--{name}", "null"], [f"--{name}=null"], [f"--{dashed}", "null"], [f"--{dashed}=null"]]
    given = [parse(*form).overrides for form in forms]
    assert all(list(overrides) == [name] for overrides in given) and all(overrides == given[0] for overrides in given)


def test_negative_values_and_the_last_of_two() -> None:
    words = ["--model.lambda_kl", "-1e-3", "--model.selector_layer", "-1", "--patience", "-4", "--model.shape_min=-0.5"]
    expected = {"patience": -4, "model.lambda_kl": -0.001, "model.selector_layer": -1, "model.shape_min": -0.5}
    assert parse(*words).overrides == expected
    assert parse("--epochs", "2", "--epochs", "3").overrides == {"epochs": 3}


def test_recipe_and_flags_stand_anywhere() -> None:
    assert parse().recipe == "default"
    for words in (
        ["specialise", "--resume", "--epochs", "2"],
        ["--epochs", "2", "specialise", "--resume"],
        ["--resume", "specialise", "--epochs=2"],
    ):
        assert parse(*words) == Arguments("specialise", {"epochs": 2}, True, None)
    assert parse("--push-to-hub", "me/x").push_to_hub == parse("--push_to_hub=me/x").push_to_hub == "me/x"
    assert parse("--model", "{view: input}", "--model.target-rate", "0.3").overrides == {
        "model": {"view": "input"},
        "model.target_rate": 0.3,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["specialise", "epochs"], "expected --key value, got 'epochs'"),
        (["--epoch", "3"], "unknown recipe key 'epoch': did you mean 'epochs'"),
        (["--batch-sise=3"], "unknown recipe key 'batch_sise': did you mean 'batch_size'"),
        (["--resum"], "unknown recipe key 'resum'"),
        (["--data", "[a"], "is not valid YAML"),
    ],
)
def test_what_makes_no_sense(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_arguments(words)


@pytest.mark.parametrize("words", [["--epochs"], ["--epochs", "--seed", "3"]])
def test_an_option_without_its_value(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(words, "hardkuma train")
    said = "hardkuma train: argument --epochs: expected one argument. See hardkuma train --help\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["specialise", "--epochs", "3", "--help"]])
def test_help_has_the_manual_and_every_key(words: list[str]) -> None:
    text = parse_arguments(words, "hardkuma train", "The manual: 100% of it.")
    assert isinstance(text, str) and "hardkuma train [RECIPE]" in text and "The manual: 100% of it." in text
    flat = " ".join(text.split())
    for key in recipe_keys():
        assert f"--{key.name} " in flat and key.rule.help in flat, key.name
    assert "--batch_size INT sentences of the global batch, over all processes (default: 64)" in flat
    assert "--cache_type float16|bfloat16|float32" in flat and "(default: null)" in flat
    assert "--model.NAME" in flat and "configuration_hardkuma.py" in flat
