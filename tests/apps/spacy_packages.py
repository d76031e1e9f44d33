"""spaCy pipelines as packages, made by hand: their entities are known, and nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

LOAD = """
from pathlib import Path
from spacy.util import load_model_from_path

def load(**overrides):
    return load_model_from_path(Path(__file__).parent, **overrides)
"""


def install_pipeline(site: Path, name: str, names: dict[str, list[str]] | None) -> Path:
    """A package in a folder of packages whose `ner` knows these phrases by label (None: it has no `ner`); its folder.

    Python keeps a package that was imported: one name for each test that loads one.
    """
    import spacy

    pipeline = spacy.blank("en")
    pipeline.meta["version"] = "1.2.3"
    if names is not None:
        ruler = pipeline.add_pipe("entity_ruler", name="ner")
        ruler.add_patterns(
            [
                {"label": label, "pattern": [{"ORTH": word} for word in phrase.split()]}
                for label, phrases in names.items()
                for phrase in phrases
            ]
        )
    folder = site / name
    site.mkdir(exist_ok=True)
    pipeline.to_disk(folder)
    (folder / "__init__.py").write_text(LOAD)
    info = site / f"{name}-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
    (info / "entry_points.txt").write_text(f"[spacy_models]\n{name} = {name}\n")
    return folder
