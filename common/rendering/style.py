"""How words, records and pages look: colours in light and dark, and one scale of shades.

The scale is the same wherever words are shaded: a share of 0 has no colour, a share of 1 the full one, and nothing is
stretched to the strongest word of a text.
"""

from __future__ import annotations

HUES = 6  # where words are coloured by selector; of more selectors the hues come round again
# `--mark` is the marker, `--depth` how much of it a share of 1 has: the ink on it stays readable.
LIGHT = (
    "--ink: #1f1c17; --soft: #655e53; --page: #fdfcf9; --card: #f5f2ea; --line: #ddd6c8; --accent: #8a4b00; --depth: .9; "
    "--mark: 245, 166, 20; --hue0: 245, 166, 20; --hue1: 88, 166, 230; --hue2: 104, 186, 96; --hue3: 224, 122, 184; "
    "--hue4: 164, 140, 228; --hue5: 48, 184, 176; --differs: 240, 128, 112;"
)
DARK = (
    "--ink: #f4efe6; --soft: #b9b0a1; --page: #161411; --card: #211e19; --line: #413b31; --accent: #f3b754; --depth: .6; "
    "--mark: 214, 130, 8; --hue0: 214, 130, 8; --hue1: 40, 120, 200; --hue2: 60, 140, 60; --hue3: 184, 64, 140; "
    "--hue4: 126, 96, 200; --hue5: 16, 136, 130; --differs: 206, 70, 56;"
)
SANS = '"Inter", "Segoe UI", "Helvetica Neue", "Liberation Sans", Arial, system-ui, sans-serif'
_SHADE = "background: color-mix(in srgb, rgb(var(--mark)) calc(var(--share) * var(--depth)), transparent);"

COLOURS = f"""
:root {{ {LIGHT} color-scheme: light dark; }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
"""
# Common to every page of this project; a page adds its own rules.
BASE_STYLE = f"""{COLOURS}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 {SANS}; }}
main {{ max-width: 76rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; overflow-wrap: anywhere; }}
.small {{ color: var(--soft); font-size: .875rem; }}
mark {{ color: inherit; border-radius: .2em; padding: .1em .15em; print-color-adjust: exact; {_SHADE} }}
@media (max-width: 40rem) {{ body {{ font-size: 15px; }} main {{ padding: .75rem; }} }}
"""
# The rules of a record alone, for pages that have a style of their own but define the colours above.
RECORD_STYLE = f"""
.hk-record {{ margin: 0 0 .75rem; padding: .75rem; background: var(--card); border-radius: .5rem; color: var(--ink);
  content-visibility: auto; contain-intrinsic-size: auto 6rem; }}
.hk-text {{ margin: 0; line-height: 2.1; white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; }}
.hk-text mark, .hk-legend mark {{ color: var(--ink); border-radius: .2em; padding: .1em 0; print-color-adjust: exact;
  {_SHADE} }}
.hk-span {{ {_SHADE} padding: .1em .12em .16em; margin: 0 1px; border-radius: .2em;
  border-bottom: .14em solid var(--accent); color: var(--ink); print-color-adjust: exact;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; }}
.hk-text .hk-span mark, .hk-legend .hk-span mark {{ background: none; }}
{" ".join(f".hk-hue{number} {{ --mark: var(--hue{number}); }}" for number in range(HUES))}
.hk-different {{ --mark: var(--differs); }}
.hk-span.hk-different {{ border-bottom: .14em dotted rgb(var(--differs)); }}
.hk-grid {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: .75rem; }}
.hk-grid > * {{ min-width: 0; margin: 0; }}
.hk-caption {{ margin: .35rem 0 0; color: var(--soft); font-size: .875rem; overflow-wrap: anywhere; }}
.hk-verdict {{ margin: 0 0 .5rem; }}
.hk-legend {{ display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .75rem 0; color: var(--soft);
  font-size: .875rem; }}
.hk-scale {{ white-space: nowrap; }}
.hk-ramp {{ display: inline-block; width: 6rem; height: 1em; margin: 0 .4em; vertical-align: -.15em; border-radius: .2em;
  background: linear-gradient(to right, transparent, rgba(var(--mark), var(--depth)));
  border: 1px solid var(--line); print-color-adjust: exact; }}
"""
