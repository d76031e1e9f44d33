"""`hardkuma demo`: runs apps/page/serve.py, which reads its own arguments."""

from __future__ import annotations

from collections.abc import Sequence

SUMMARY = "start the demonstration page on this machine"


def main(arguments: Sequence[str]) -> int:
    """Serve until Ctrl-C."""
    from ..apps.page.serve import main as serve

    return serve(list(arguments))
