"""Style sheet of all reports, in Python so that it is always part of an installed package."""

import re

STYLE = """\
:root {
  color-scheme: light dark;
  --ground: #ffffff; --panel: #f5f6f7; --ink: #1b1f24; --muted: #5b6570; --rule: #dde1e6;
  --series-1: #0072b2; --series-2: #c24e00; --series-3: #00805e; --band: #0072b233;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171b; --panel: #1d2126; --ink: #e6e9ec; --muted: #a0a9b3; --rule: #343a42;
    --series-1: #56b4e9; --series-2: #f0a030; --series-3: #3ecf9f; --band: #56b4e94d;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Apple SD Gothic Neo", "Malgun Gothic",
    "Noto Sans CJK KR", "DejaVu Sans", sans-serif;
}
main { max-width: 68rem; margin: 0 auto; padding: 3rem 1.5rem 5rem; }
h1 { font-size: 2.1rem; line-height: 1.2; margin: 0; letter-spacing: -0.015em; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 0 0 .5rem; letter-spacing: -0.01em; }
h3 { font-size: 1rem; margin: 1.75rem 0 .25rem; }
p { margin: .25rem 0 1rem; max-width: 44rem; }
.subtitle, .muted { color: var(--muted); }
.subtitle { margin: .5rem 0 0; }
section { margin-top: 3rem; padding-top: 2rem; border-top: 1px solid var(--rule); }

.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 1.5rem 2rem;
  margin: 2.5rem 0 0; }
.figures > div { display: flex; flex-direction: column-reverse; justify-content: flex-end; }
.figures dt { color: var(--muted); font-size: .9rem; line-height: 1.4; }
.figures dd { margin: 0; font-size: 1.9rem; line-height: 1.25; font-weight: 600; font-variant-numeric: tabular-nums; }

.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .75rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .55rem 1.5rem .55rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
th { color: var(--muted); font-size: .85rem; font-weight: 500; white-space: nowrap; vertical-align: bottom; }
th:last-child, td:last-child { padding-right: 0; }
th.number, td.number { text-align: right; white-space: nowrap; }
tbody tr:last-child td { border-bottom: 0; }

.metric { display: flex; align-items: center; gap: .25rem .9rem; }
.metric > :first-child { min-width: 5.2rem; white-space: nowrap; }
.metric > .meter { position: relative; flex: 0 1 11rem; min-width: 5rem; height: .6rem; border-radius: .15rem;
  background: var(--rule); overflow: hidden; }
.meter > span { position: absolute; top: 0; bottom: 0; background: var(--series-1); }
.meter > .band { background: var(--ground); opacity: .45; }
td .text { margin: 0; min-width: 14rem; overflow-wrap: anywhere; }
td .answer { margin: 0; min-width: 6rem; overflow-wrap: anywhere; }
td .text + .text { margin-top: .4rem; padding-top: .4rem; border-top: 1px dotted var(--rule); }
.cell { display: inline-block; min-width: 3.2rem; padding: .1rem .5rem; border-radius: .2rem;
  background: color-mix(in srgb, var(--series-1) calc(var(--share) * .45), transparent); }
.mark { padding: .05em .35em; border-radius: .2rem; background: var(--band); font-size: .9em; font-weight: 600; }
.fillings { list-style: none; margin: 0; padding: 0; min-width: 8.5rem; max-width: 14rem; }
.fillings li { display: flex; justify-content: space-between; gap: .75rem; }

.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1.5rem 2rem;
  margin: 1rem 0 0; }
.plots figure { margin: 0; max-width: 30rem; }
svg.plot { display: block; width: 100%; height: auto; }
svg.plot text { font-family: inherit !important; }

.command { margin: 1rem 0; }
.command p { margin: 0 0 .25rem; }
pre { margin: 0; padding: .75rem 1rem; background: var(--panel); border-radius: .3rem; overflow-x: auto; }
pre, code { font: .875rem/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }

@media (max-width: 40rem) {
  main { padding: 1.75rem 1rem 3rem; }
  h1 { font-size: 1.7rem; }
  section { margin-top: 2rem; padding-top: 1.5rem; }
  .figures { grid-template-columns: repeat(2, 1fr); gap: 1.25rem; margin-top: 1.75rem; }
  .figures dd { font-size: 1.5rem; }
  table { font-size: .9rem; }
  th, td { padding-right: .75rem; }
  .metric { flex-direction: column; align-items: stretch; }
  .metric > :first-child { min-width: 0; }
  .metric > .meter { flex: none; min-width: 3.5rem; }
}
@media print { section { break-inside: avoid; } }
"""

# The colours of a light page by name, for PNG plots, which do not use the style sheet.
LIGHT: dict[str, str] = dict(re.findall(r"--([\w-]+): (#\w+)", STYLE[: STYLE.index("@media")]))
