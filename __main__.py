"""The `hardkuma` command."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    return 0


if __name__ == "__main__":
    sys.exit(main())
