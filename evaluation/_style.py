"""The style sheet of the HTML report: system fonts, light and dark, readable from phone to desktop."""

from __future__ import annotations

from ..common.rendering.style import BASE_STYLE

STYLE = (
    BASE_STYLE
    + """
h2 { margin: 2.5rem 0 .5rem; font-size: 1.3rem; }
h3 { margin: 1.5rem 0 .5rem; font-size: 1.05rem; }
code { background: var(--card); padding: .1em .3em; border-radius: .25em; overflow-wrap: anywhere; }
a { color: var(--accent); } nav a { margin-right: 1rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { background: var(--card); vertical-align: bottom; white-space: normal; font-weight: 600; hyphens: manual; }
th:first-child { position: sticky; left: 0; background: var(--page); text-align: left; font-weight: 400;
  min-width: 11rem; max-width: 15rem; white-space: normal; }
thead th:first-child { background: var(--card); font-weight: 600; }
tr.gates th, tr.gates td { font-weight: 600; } tr.reference > *, tr.encoder > * { color: var(--soft); font-style: italic; }
td.best { box-shadow: inset 0 -2px var(--accent); }
.spread { display: block; color: var(--soft); font-size: .75rem; font-weight: 400; font-style: normal; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .75rem; background: var(--card); border-radius: .5rem; color: var(--ink); }
figure svg { width: 100%; height: auto; display: block; } figcaption { color: var(--soft); font-size: .875rem; }
.key { list-style: none; padding: 0; margin: .5rem 0 1rem; display: grid; font-size: .875rem; gap: .1rem 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); }
.swatch { display: inline-block; width: 1.8rem; margin-right: .5rem; vertical-align: middle; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0; padding: .5rem .75rem; }
summary { cursor: pointer; overflow-wrap: anywhere; } dl { margin: .5rem 0 0; }
dl > div { display: grid; grid-template-columns: 15rem 1fr; gap: 0 1rem; padding: .3rem 0;
  border-top: 1px solid var(--line); }
dt { color: var(--soft); font-size: .875rem; } dd { margin: 0; overflow-wrap: anywhere; line-height: 1.9; }
.gates dt { color: var(--ink); font-weight: 600; } .gold b { border-bottom: 2px solid var(--accent); }
mark.top { text-decoration: underline; text-decoration-thickness: 2px; text-underline-offset: .2em; }
@media (max-width: 40rem) { dl > div { grid-template-columns: 1fr; }
  th:first-child { min-width: 6.5rem; max-width: 7.5rem; } th, td { padding: .3rem .45rem; } }
@media print { .scroll { overflow: visible; } }
"""
)
