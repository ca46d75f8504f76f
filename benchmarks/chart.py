"""Bar chart of the README, drawn from the table in `benchmarks/RESULTS.md`: `python benchmarks/chart.py`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CHART = ROOT / "docs" / "passes.svg"
ROWS = {
    "template with four holes": "a list with four holes",
    "few-shot labels of 200 rows": "labels of 200 rows",
    "the same with a line more, in a new process": "five questions about an edited document, in a new process",
}
"""Rows of the table, and their names in the chart."""
OURS, OTHER = "#2f6fde", "#9aa4b2"
WIDTH, LABEL, BAR, GAP = 760, 170, 17, 24


class Bar(NamedTuple):
    tool: str
    passes: int
    tokens: int


def measured(table: str) -> dict[str, list[Bar]]:
    """Passes and tokens of each tool that played and broke no condition, by task."""
    lines = {line.split(" | ")[0].lstrip("| "): line for line in table.splitlines() if line.startswith("| ")}
    tools = [cell.split()[0] for cell in lines["task"].strip("| ").split(" | ")[1:]]
    return {
        name: [
            Bar(tool, *(int(number.replace(",", "")) for number in counts.groups()))
            for tool, cell in zip(tools, lines[row].strip("| ").split(" | ")[1:], strict=True)
            if (counts := re.match(r"([\d,]+) · ([\d,]+) · .*held$", cell.strip()))
        ]
        for row, name in ROWS.items()
    }


def drawn(groups: dict[str, list[Bar]]) -> str:
    """The chart as SVG. Bars are passes, as a share of the longest bar of their group."""
    parts, y = [], 20
    for name, bars in groups.items():
        longest = max(bar.passes for bar in bars)
        parts.append(f'<text x="0" y="{y + 4}" font-weight="600">{name}</text>')
        for number, bar in enumerate(bars):
            y += BAR + 4
            width = max(round((WIDTH - LABEL - 190) * bar.passes / longest), 2)
            colour = OTHER if number else OURS
            parts.append(f'<text x="{LABEL - 10}" y="{y + 4}" text-anchor="end">{bar.tool}</text>')
            parts.append(f'<rect x="{LABEL}" y="{y - 9}" width="{width}" height="{BAR}" fill="{colour}"/>')
            words = f"{bar.passes:,} {'pass' if bar.passes == 1 else 'passes'}, {bar.tokens:,} tokens"
            parts.append(f'<text x="{LABEL + width + 8}" y="{y + 4}">{words}</text>')
        y += BAR + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - GAP}" width="{WIDTH}" font-size="13"'
    body = "\n".join(parts)
    return f'{head} font-family="system-ui, sans-serif" fill="#768390">\n{body}\n</svg>\n'


if __name__ == "__main__":
    CHART.write_text(drawn(measured((ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8"))), "utf-8")
