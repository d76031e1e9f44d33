"""`python -m hardkuma.apps.page`: the same as `hardkuma demo`."""

from __future__ import annotations

import sys

from .serve import main

try:
    sys.exit(main())
except KeyboardInterrupt:
    sys.exit(130)
