"""Starts the demo, or writes it as a Hugging Face Space.

    hardkuma demo                      # opens http://127.0.0.1:7860
    hardkuma demo --model FOLDER       # another checkpoint
    hardkuma demo --write-space DIR    # write a folder that is a complete Space instead

Only this machine can reach it, unless GRADIO_SERVER_NAME says otherwise (as it does inside a Space).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...common.arguments import Parser
from ...common.models import load_model
from ...common.packages import require
from .space import write_space

EXAMPLES = """\
examples:
  hardkuma demo                                             the released gates, at http://127.0.0.1:7860
  hardkuma demo --model runs/default/model --open           another checkpoint, in the browser at once
  hardkuma demo --write-space DIR                           a folder that is a complete Hugging Face Space
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the demo and serve until Ctrl-C, or write the Space; returns the exit status."""
    description = "Start the demo in a browser, on this machine only."
    parser = Parser(prog="hardkuma demo", description=description, epilog=EXAMPLES)
    parser.add_argument("--model", help="checkpoint folder or Hub id (default: the released gates)")
    parser.add_argument("--selector", metavar="NAME", help="the one to start with, where it has several (default: meaning)")
    parser.add_argument("--port", type=int, help="default: the first free one from 7860 on")
    parser.add_argument("--open", action="store_true", help="open the browser")
    parser.add_argument("--write-space", metavar="DIR", help="write a folder that is a complete Space, and stop")
    options = parser.parse_args(arguments)
    if options.port is not None and not 0 < options.port < 1 << 16:
        parser.error(f"--port must be in 1 to 65535, got {options.port}.")
    if options.write_space:
        write_space(options.write_space, load_model(options.model, "cpu") if options.model else None)
        print(f"Push it with: hf upload --repo-type space USER/NAME {options.write_space} .")
        return 0
    require("gradio", "demo")
    from .app import build_app, start

    app = start(
        build_app(load_model(options.model, "cpu"), options.selector), server_port=options.port, inbrowser=options.open
    )
    print(f"The demo is at {app.local_url} (Ctrl+C stops it).", flush=True)
    try:
        while app.is_running:  # gradio's block_thread swallows Ctrl-C, and the status would be 0
            time.sleep(0.1)
    finally:
        app.close(verbose=False)
    return 0
