"""`hardkuma demo`: hands its words on to demo/page.py."""

from __future__ import annotations

from collections.abc import Sequence

SUMMARY = "start the demonstration page on this machine"


def main(words: Sequence[str]) -> int:
    """Serve until Ctrl-C."""
    try:
        from ..demo.page import main as run

        return run(list(words))
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise ImportError("the demo needs the package gradio: pip install 'hardkuma[demo]'") from error
