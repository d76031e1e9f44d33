"""The command line of training: a recipe, and every key of it as an option, from the declarations in recipe.py."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_origin

import yaml

from ..common.arguments import Parser
from .recipe import BaseRecipe, Recipe, check_key, recipe_keys
from .settings import Setting, read_numbers

KEYS = """\
Values are read as YAML. A default holds where the recipe does not name the key.
--model.NAME VALUE sets a field of HardKumaConfig; its docstring in configuration_hardkuma.py explains them all."""
_TYPE_NAMES = {bool: "BOOL", int: "INT", float: "FLOAT", str: "TEXT", list: "LIST", dict: "DICT"}


@dataclass(frozen=True)
class Arguments:
    """What was asked for.

    Attributes:
        recipe: path or name of the recipe.
        overrides: keys given on the command line; `model.NAME` for those of the model.
        resume: whether to go on from the last checkpoint.
        push_to_hub: repository to upload the result to, if any.
    """

    recipe: str
    overrides: dict[str, Any]
    resume: bool
    push_to_hub: str | None


def build_parser(prog: str, manual: str, kind: type[BaseRecipe] = Recipe, default: str = "default") -> Parser:
    """All options of a kind of recipe, with the manual before their list."""
    of_model = " [--model.NAME VALUE ...]" if kind is Recipe else ""
    parser = Parser(
        prog=prog,
        usage=f"{prog} [RECIPE] [--resume] [--push-to-hub ID] [--KEY VALUE ...]{of_model}",
        description=manual,
        allow_abbrev=False,  # or --epoch would be --epochs
        add_help=False,
    )
    parser.add_argument(
        "recipe", nargs="?", default=default, metavar="RECIPE", help="file, or name of one that comes along"
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this and stop")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint, to the bit")
    _add_option(parser, "push-to-hub", metavar="ID", default=None, help="upload the result to this repository")
    keys = parser.add_argument_group("keys of a recipe", KEYS if kind is Recipe else KEYS.split("\n")[0])
    for key in recipe_keys(kind):
        _add_option(keys, key.name, metavar=_type_name(key), default=argparse.SUPPRESS, help=_explain(key))
    return parser


def _add_option(group: argparse._ActionsContainer, name: str, *, help: str, **options: Any) -> None:
    """The option as it is named, which help shows, and with dashes for underscores or the reverse."""
    group.add_argument(f"--{name}", help=help, **options)
    for other in {name.replace("_", "-"), name.replace("-", "_")} - {name}:
        group.add_argument(f"--{other}", help=argparse.SUPPRESS, **options)


def _type_name(key: Setting) -> str:
    return "|".join(key.rule.choices) or _TYPE_NAMES[get_origin(key.kind) or key.kind]


def _explain(key: Setting) -> str:
    default = yaml.safe_dump(key.default, default_flow_style=True).removesuffix("...\n").strip()
    return f"{key.rule.help} (default: {default})".replace("%", "%%")


def parse_arguments(
    words: Sequence[str],
    prog: str = "train.py",
    manual: str = "",
    kind: type[BaseRecipe] = Recipe,
    default: str = "default",
) -> Arguments | str:
    """The arguments, or the help text where it was asked for; ValueError for a key or value that makes no sense, and status
    2 for options that are no options.

    Args:
        kind, default: which recipes these are, and the one that is meant where none is named.

    >>> parse_arguments(["specialise", "--epochs", "3", "--model.view=input", "--data", "[a.txt, b.txt]"]).overrides
    {'data': ['a.txt', 'b.txt'], 'epochs': 3, 'model.view': 'input'}
    """
    parser = build_parser(prog, manual, kind, default)
    # The names of the model's fields are HardKumaConfig's to check: any of them is an option here.
    for word in dict.fromkeys(word.partition("=")[0] for word in words if kind is Recipe and word.startswith("--model.")):
        parser.add_argument(word, default=argparse.SUPPRESS)
    # argparse takes -1e-3 for an option; with a space before it, it is a value, and YAML does not mind.
    options, unknown = parser.parse_known_args([re.sub(r"^(?=-[\d.])", " ", word) for word in words])
    if options.help:
        return parser.format_help()
    for word in unknown:
        if not word.startswith("--"):
            raise ValueError(f"expected --key value, got {word!r}.")
        check_key(word[2:].partition("=")[0].replace("-", "_"), kind)
    given, overrides = vars(options), {}
    for key in recipe_keys(kind):
        if key.name in given:
            overrides[key.name] = _read(given[key.name], key)
    for name, word in given.items():
        if name.startswith("model."):
            overrides[name.replace("-", "_")] = read_numbers(_read(word))
    return Arguments(options.recipe, overrides, options.resume, options.push_to_hub)


def _read(word: str, key: Setting | None = None) -> Any:
    """A word as YAML. For a key that holds text it stays the word where YAML would make something else of it."""
    word = word.strip()
    is_text = key is not None and key.kind is str
    try:
        value = yaml.safe_load(word)
    except yaml.YAMLError as error:
        if is_text:
            return word
        raise ValueError(f"{word!r} is not valid YAML: {' '.join(str(error).split())}") from error
    if is_text and not isinstance(value, str):
        return None if value is None and key is not None and key.optional else word
    return value
