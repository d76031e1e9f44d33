"""How the page looks: our rules over Gradio's, its theme, and the script that saves a file."""

from __future__ import annotations

import gradio as gr

from ..rendering.html import DARK, LIGHT, RECORD_STYLE

STYLE = f"""
.gradio-container {{ {LIGHT} }}
.dark .gradio-container, .dark.gradio-container {{ {DARK} }}
{RECORD_STYLE}
.hk-record {{ margin: 0; content-visibility: visible;
  border: 1px solid var(--border-color-primary); background: var(--block-background-fill); }}
.hk-record :is(p, h3, mark, figcaption, bdi) {{ color: inherit; }} .hk-record .hk-caption {{ color: var(--soft); }}
.hk-grid h3 {{ margin: 0 0 .25rem; font-size: 1rem; }}
.hk-problem {{ margin: 0; padding: .75rem; border: 2px solid #c2410c; border-radius: .5rem; color: var(--ink); }}
.hk-table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; color: var(--ink); }}
.hk-table th, .hk-table td {{ padding: .15rem .75rem .15rem 0; text-align: left; overflow-wrap: anywhere;
  border: 0 solid var(--line); border-bottom-width: 1px; }}
.html-container:has(.hk-record, .hk-legend, .hk-problem) {{ padding: 0; }}
input[type="range"]::-webkit-slider-thumb {{ border: 2px solid var(--slider-color); }}
.hk-scroll {{ max-height: 20rem; overflow: auto; }}
"""
# The file is made in the browser from what the server sends: no file is written here.
SAVE_FILE = """(file) => {
  if (!file) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([file.content], {type: file.type}));
  link.download = file.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}"""


def make_theme() -> gr.themes.Base:
    """Gradio's default theme with the system's own fonts: nothing is fetched."""
    plain = gr.themes.Default(
        primary_hue="blue",
        neutral_hue="zinc",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    # The default greys of small print are too faint to read.
    readable = {"body_text_color_subdued": "*neutral_600", "block_info_text_color": "*neutral_600"}
    readable |= {f"{name}_dark": "*neutral_300" for name in readable}
    return plain.set(**readable)
