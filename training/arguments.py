"""The command line of training: a recipe, and every key of it as an option, from the declarations of its settings."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_origin

import yaml

from ..common.arguments import Parser
from .objectives.settings import OBJECTIVES
from .recipe import RECIPES, BaseRecipe, Recipe, check_key
from .settings import Setting, read_numbers, settings_of

VALUES = "Values are read as YAML. A default holds where the recipe does not name the key."
PATHS = """\
--model.NAME VALUE                  a field of HardKumaConfig
--selectors.NAME.KEY VALUE          a field of the SelectorConfig of one selector; --selectors.NAME null leaves it out
--selectors.NAME.train.KEY VALUE    a setting of its objective
--train.KEY VALUE                   the same for every selector whose objective has this setting
Fields are explained in configuration_hardkuma.py. Objectives and their settings:"""
_PATHS = ("--model.", "--selectors.", "--train.")
_TYPE_NAMES = {bool: "BOOL", int: "INT", float: "FLOAT", str: "TEXT", list: "LIST", dict: "DICT"}


@dataclass(frozen=True)
class Arguments:
    """What was asked for.

    Attributes:
        recipe: path or name of the recipe.
        overrides: keys given on the command line; see `apply_override`.
        resume: whether to go on from the last checkpoint.
        push_to_hub: repository to upload the result to, if any.
        overwrite: whether to replace what another run has left in the output folder.
    """

    recipe: str
    overrides: dict[str, Any]
    resume: bool
    push_to_hub: str | None
    overwrite: bool = False


def build_parser(prog: str, manual: str, cls: type[BaseRecipe] = Recipe, default: str = "default") -> Parser:
    """All options of a sort of recipe, with the manual before their list."""
    of_gates = cls is Recipe
    parser = Parser(
        prog=prog,
        usage=f"{prog} [RECIPE] [--resume] [--overwrite] [--push-to-hub ID] [--KEY VALUE ...]",
        description=manual,
        epilog="\n".join([PATHS, *_explain_objectives()]) if of_gates else None,
        allow_abbrev=False,  # or --colum would be --column
        add_help=False,
    )
    parser.add_argument(
        "recipe", nargs="?", default=default, metavar="RECIPE", help="file, or name of one that comes along"
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this and stop")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint, to the bit")
    parser.add_argument("--overwrite", action="store_true", help="replace what another run has left in the output folder")
    _add_option(parser, "push-to-hub", metavar="ID", default=None, help="upload the result to this repository")
    if of_gates:
        names = ", ".join(name for name in OBJECTIVES if (RECIPES / f"{name}.yaml").is_file())
        parser.add_argument("--objective", metavar="NAME", help=f"the recipe of this objective, instead of RECIPE: {names}")
    keys = parser.add_argument_group("keys of a recipe", VALUES)
    for key in settings_of(cls):
        _add_option(keys, key.name, metavar=_type_name(key), default=argparse.SUPPRESS, help=_explain(key))
    return parser


def _add_option(group: argparse._ActionsContainer, name: str, *, help: str, **options: Any) -> None:
    """The option as it is named, which help shows, and with dashes for underscores or the reverse."""
    group.add_argument(f"--{name}", help=help, **options)
    for other in {name.replace("_", "-"), name.replace("-", "_")} - {name}:
        group.add_argument(f"--{other}", help=argparse.SUPPRESS, **options)


def _type_name(key: Setting) -> str:
    return "|".join(key.rule.choices) or _TYPE_NAMES[get_origin(key.type) or key.type]


def _explain(key: Setting) -> str:
    default = yaml.safe_dump(key.default, default_flow_style=True).removesuffix("...\n").strip()
    return f"{key.rule.help} (default: {default})".replace("%", "%%")


def _explain_objectives() -> Iterator[str]:
    """The lines of help on them."""
    for name, settings in OBJECTIVES.items():
        yield f"\n  {name}: {(settings.__doc__ or '').strip()}"
        for key in settings_of(settings):
            yield f"    {key.name} {_type_name(key)}".ljust(28) + f" {_explain(key)}"


def parse_arguments(
    words: Sequence[str],
    prog: str = "train.py",
    manual: str = "",
    cls: type[BaseRecipe] = Recipe,
    default: str = "default",
) -> Arguments | str:
    """The arguments, or the help text where it was asked for; ValueError for a key or value that makes no sense, and status
    2 for options that are no options.

    Args:
        cls, default: which recipes these are, and the one that is meant where none is named.

    >>> parse_arguments(["parts", "--train.steps", "3", "--model.view=input", "--data", "[a.txt, b.txt]"]).overrides
    {'data': ['a.txt', 'b.txt'], 'train.steps': 3, 'model.view': 'input'}
    """
    parser = build_parser(prog, manual, cls, default)
    # Which names there are depends on the recipe: any is an option here.
    for word in dict.fromkeys(word.partition("=")[0] for word in words if cls is Recipe and word.startswith(_PATHS)):
        parser.add_argument(word, dest=_dashed(word), default=argparse.SUPPRESS)
    # argparse takes -1e-3 for an option; with a space before it, it is a value, and YAML does not mind.
    options, unknown = parser.parse_known_args([re.sub(r"^(?=-[\d.])", " ", word) for word in words])
    if options.help:
        return parser.format_help()
    for word in unknown:
        if not word.startswith("--"):
            raise ValueError(f"expected --key value, got {word!r}.")
        check_key(word[2:].partition("=")[0].replace("-", "_"), cls)
    given = vars(options)
    overrides = {key.name: _read(given[key.name], key) for key in settings_of(cls) if key.name in given}
    for name, word in given.items():
        if f"--{name}".startswith(_PATHS):
            overrides[name] = read_numbers(_read(word, _find_setting(name)))
    recipe = options.recipe
    if cls is Recipe and options.objective is not None:  # of an encoder's recipe it is a key
        if recipe not in (default, options.objective):
            raise ValueError(
                f"two recipes are named, {recipe} and the one of --objective {options.objective}: leave one out."
            )
        recipe = options.objective
    return Arguments(recipe, overrides, options.resume, options.push_to_hub, options.overwrite)


def _dashed(word: str) -> str:
    """An option's path with underscores for dashes, but in the name of a selector.

    >>> _dashed("--selectors.go-went.hidden-size"), _dashed("--train.batch-size")
    ('selectors.go-went.hidden_size', 'train.batch_size')
    """
    first, *rest = word[2:].split(".")
    kept = 1 if first == "selectors" else 0
    return ".".join([first, *rest[:kept], *(part.replace("-", "_") for part in rest[kept:])])


def _find_setting(path: str) -> Setting | None:
    """The setting of an objective that a path names, if it names one."""
    *before, name = path.split(".")
    settings = (key for cls in OBJECTIVES.values() for key in settings_of(cls)) if before[-1:] == ["train"] else ()
    return next((key for key in settings if key.name == name), None)


def _read(word: str, key: Setting | None = None) -> Any:
    """A word as YAML. For a key that holds text it stays the word where YAML would make something else of it."""
    word = word.strip()
    is_text = key is not None and key.type is str
    try:
        value = yaml.safe_load(word)
    except yaml.YAMLError as error:
        if is_text:
            return word
        raise ValueError(f"{word!r} is not valid YAML: {' '.join(str(error).split())}") from error
    if is_text and not isinstance(value, str):
        return None if value is None and key is not None and key.optional else word
    return value
