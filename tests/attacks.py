"""What the public contract must bear: generated texts, configs, recipes, damaged checkpoints and indexes, odd requests.

Everything is drawn from a `random.Random`: hypothesis hands one in that it can shrink (tests/test_contract.py), the long
run one with a seed (benchmarks/resilience.py). Every check raises an AssertionError where the contract is broken.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardkuma import HardKumaModel

ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789,.",
    " \t\n\r\u00a0\u2028\u3000",
    ".,;:!?…'\"’“”()[]{}<>&@#_-–—*=/\\|",
    "äöüßéñçøåÆŁİıſ",
    "αβγΔΩдйЖשלוםالسلامहिन्दी",
    "中文日本語ひらがなカタカナ한국어ไทยລາວ",
    "\u0301\u0308\u200b\u200c\u200d\u200e\u202e\ufeff\ufe0f",
    "😀👍🏽👨\u200d👩\u200d👧🇩🇪❤️",
    "\0\x01\x1b\x7f\u0085\ud800\udfff\uffff\U0010ffff",
)
PHRASES = (
    "Marie Curie",
    "New York",
    "don't",
    "U.S.",
    "4,500",
    "O'Neil's",
    "<unk>",
    "[CLS]",
    "[SEP]",
    "Mr. ",
    "e.g. ",
    "= = ",
)


def hostile_text(draw: Random, longest: int = 400) -> str:
    """Any text: words, many scripts, marks without letters, half characters, repetitions, nothing at all."""
    pieces = []
    for _ in range(draw.randint(0, 12)):
        alphabet = draw.choice(ALPHABETS)
        pieces.append(
            draw.choice(
                (
                    lambda alphabet=alphabet: "".join(draw.choices(alphabet, k=draw.randint(1, 12))),
                    lambda: draw.choice(PHRASES),
                    lambda alphabet=alphabet: draw.choice(alphabet) * draw.randint(1, 60),
                    lambda: chr(draw.randrange(0x110000)),
                )
            )()
        )
    return draw.choice((" ", "", "\n")).join(pieces)[:longest]


def check_records(model: HardKumaModel, texts: Sequence[str], selector: str) -> None:
    """Offsets, probabilities and selections of records are sound, and do not depend on the company or the rate's order."""
    from hardkuma.scoring_hardkuma import encodable, gate_records

    texts = [encodable(text) for text in texts]
    records = gate_records(model, texts, selector=selector)
    few, many = (gate_records(model, texts, selector=selector, rate=rate) for rate in (0.2, 0.6))
    for text, record, low, high in zip(texts, records, few, many, strict=True):
        assert record["text"] == text, repr(text)
        place = 0
        for word in record["words"]:
            assert place <= word["start"] < word["end"] <= len(text), repr(text)
            assert word["word"] == text[word["start"] : word["end"]] and 0 <= word["probability"] <= 1, repr(text)
            place = word["end"]
        for span in record["spans"]:
            assert span["text"] == text[span["start"] : span["end"]] and 0 <= span["probability"] <= 1, repr(text)
        assert (record["spans"] == []) == (not any(word["selected"] for word in record["words"])), repr(text)
        chosen, more = ({word["start"] for word in each["words"] if word["selected"]} for each in (low, high))
        assert chosen <= more, f"a higher rate selects less of {text!r}"
        json.dumps(record).encode()
    if texts:
        alone = gate_records(model, texts[:1], selector=selector)[0]["words"]
        together = records[0]["words"]
        assert len(alone) == len(together)
        for one, other in zip(alone, together, strict=True):
            assert abs(one["probability"] - other["probability"]) < 1e-4, f"the company matters to {texts[0]!r}"


def hostile_value(draw: Random, depth: int = 0) -> Any:
    """Any value that JSON can hold, and the numbers that Python reads beyond it."""
    simple: list[Any] = [
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        10**9,
        -(10**9),
        10**30,
        0.5,
        -0.1,
        1e308,
        float("nan"),
        float("inf"),
    ]
    simple += ["", "x", "state", "mean", "../../etc/passwd", "evil/repo", "a" * 1000, "\0", "\ud800", "float32", "1"]
    if depth < 2 and draw.random() < 0.3:
        size = draw.randint(0, 3)
        inner = [hostile_value(draw, depth + 1) for _ in range(size)]
        return inner if draw.random() < 0.5 else {str(hostile_value(draw, 2)): value for value in inner}
    return draw.choice(simple)


def change_somewhere(draw: Random, values: Any, names: Sequence[str]) -> None:
    """Put a hostile value in the place of one of a nested mapping or list, or under a name of these, in place."""
    while True:
        keys = list(values) if isinstance(values, Mapping) else list(range(len(values)))
        key = draw.choice(keys) if keys else None
        inner = values[key] if keys else None
        if keys and isinstance(inner, (dict, list)) and inner and draw.random() < 0.6:
            values = inner
            continue
        if isinstance(values, dict) and (not keys or draw.random() < 0.2):
            values[draw.choice(names)] = hostile_value(draw)
        elif keys and draw.random() < 0.1:
            del values[key]
        elif keys:
            values[key] = hostile_value(draw)
        else:
            values.append(hostile_value(draw))
        return


NAMES = (
    "auto_map",
    "attn_implementation",
    "_attn_implementation",
    "num_labels",
    "num_selectors",
    "backbone",
    "quantization_config",
    "transformers_weights",
    "dtype",
    "torch_dtype",
    "output_hidden_states",
    "return_dict",
    "per_layer_config",
    "rope_scaling",
    "colour",
)


def refusal(run: Callable[[], Any], allowed: tuple[type[Exception], ...] = (ValueError, OSError)) -> str | None:
    """What a refusal says, None where there is none; any other error is a breach."""
    try:
        run()
    except allowed as error:
        assert str(error).strip(), f"a {type(error).__name__} without a word"
        return str(error)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    return None


def check_config(draw: Random, values: Mapping[str, Any]) -> bool:
    """Change a config in some places: it is accepted, and then again what it saves, or refused; whether it is accepted."""
    from hardkuma import HardKumaConfig

    changed = json.loads(json.dumps(values))
    for _ in range(draw.randint(1, 3)):
        change_somewhere(draw, changed, NAMES)
    kept: list[Any] = []
    said = refusal(lambda: kept.append(HardKumaConfig.from_dict(dict(changed))), (ValueError,))
    if said is None:
        again = HardKumaConfig.from_dict(json.loads(kept[0].to_json_string(use_diff=False)))
        assert again.to_dict() == kept[0].to_dict(), changed
    return said is None


def check_recipe(draw: Random, names: Sequence[str]) -> bool:
    """A recipe with a hostile value under one or two of these names is accepted or refused; whether it is accepted."""
    from hardkuma.training.recipe import load_recipe

    overrides = {draw.choice(names): hostile_value(draw) for _ in range(draw.randint(1, 2))}
    said = refusal(lambda: load_recipe("default", overrides).check_model(), (ValueError,))
    return said is None


class Canary:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


# What loading a checkpoint reads, and most damage goes to; an index is read whole.
READ = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def damage_folder(draw: Random, folder: Path, canary: Path) -> str:
    """Damage one file of a folder in some way; what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".py")
    read = [path for path in files if path.name in READ and path.parent == folder] or files
    file = draw.choice(read if draw.random() < 0.8 else files)
    content = file.read_bytes()
    ways = (
        "cut",
        "flip",
        "empty",
        "missing",
        "garbage",
        "pickle",
        "other",
        *(["json"] * 4 if file.suffix == ".json" else []),
    )
    way = draw.choice(ways)
    if way == "cut":
        file.write_bytes(content[: draw.randrange(len(content))])
    elif way == "flip":
        changed = bytearray(content)
        for _ in range(draw.randint(1, 20)):
            changed[draw.randrange(min(len(changed), draw.choice((64, 4096, 1 << 30))))] = draw.randrange(256)
        file.write_bytes(bytes(changed))
    elif way == "empty":
        file.write_bytes(b"")
    elif way == "missing":
        file.unlink()
    elif way == "garbage":
        file.write_bytes(draw.randbytes(draw.randint(1, 2000)))
    elif way == "pickle":
        file.with_name(draw.choice(("pytorch_model.bin", "model.safetensors", file.name))).write_bytes(
            pickle.dumps(Canary(canary))
        )
    elif way == "other":
        file.write_bytes(draw.choice((b"[]", b"{}", b"null", b"3", b'"x"', b"[" * 5000, b"\xff\xfe\0")))
    elif way == "json":
        values = json.loads(content)
        if isinstance(values, (dict, list)):
            change_somewhere(draw, values, NAMES)
        file.write_text(json.dumps(values), encoding="utf-8", errors="surrogatepass")
    return f"{way} {file.relative_to(folder)}"


def check_checkpoint(draw: Random, folder: Path, canary: Path) -> bool:
    """A damaged checkpoint answers or is refused, and nothing of it runs; whether it answers."""
    from hardkuma import HardKumaModel
    from hardkuma.scoring_hardkuma import gate_records

    done = damage_folder(draw, folder, canary)

    def ask() -> None:
        model = HardKumaModel.from_pretrained(folder).eval()
        gate_records(model, ["marie curie moved to paris in 1891 ."])

    try:
        said = refusal(ask)
    except AssertionError as error:
        raise AssertionError(f"{done}: {error}") from error
    assert not canary.exists(), f"{done}: code of the checkpoint ran"
    return said is None


def check_index(draw: Random, folder: Path, canary: Path) -> bool:
    """A damaged index is read as it was or refused; whether it is read."""
    from hardkuma.apps.search import SearchIndex

    before = SearchIndex.load(folder)
    texts, vectors = [passage.text for passage in before.passages], before.vectors.tolist()
    done = damage_folder(draw, folder, canary)
    kept: list[Any] = []
    try:
        said = refusal(lambda: kept.append(SearchIndex.load(folder)))
    except AssertionError as error:
        raise AssertionError(f"{done}: {error}") from error
    assert not canary.exists(), f"{done}: code of the index ran"
    if said is None:
        assert [passage.text for passage in kept[0].passages] == texts and kept[0].vectors.tolist() == vectors, done
    return said is None


def hostile_request(draw: Random) -> Any:
    """A request for the handler, sound or not."""
    if draw.random() < 0.1:
        return hostile_value(draw)
    texts = [
        draw.choice((lambda: hostile_text(draw, 120), lambda: hostile_value(draw)))() for _ in range(draw.randint(1, 3))
    ]
    request: dict[str, Any] = {"inputs": draw.choice((texts, texts[0]))}
    if draw.random() < 0.7:
        names = draw.choices(("rate", "threshold", "selector", "use_surface", "colour"), k=draw.randint(0, 2))
        sound = {"rate": 0.3, "threshold": 0.5, "selector": "meaning", "use_surface": True, "colour": "red"}
        request["parameters"] = {name: draw.choice((sound[name], hostile_value(draw))) for name in names}
    if draw.random() < 0.1:
        request[draw.choice(("options", "parameters", "inputs"))] = hostile_value(draw)
    return request


def check_request(handler: Callable[[Any], Any], request: Any) -> bool:
    """A request is answered in plain JSON or refused; whether it is answered."""
    kept: list[Any] = []
    said = refusal(lambda: kept.append(handler(request)), (ValueError,))
    if said is None:
        json.dumps(kept[0], allow_nan=False).encode()
    return said is None
