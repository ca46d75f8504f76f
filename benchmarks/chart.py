"""Bar chart of the README, drawn from the table in `benchmarks/README.md`: `python benchmarks/chart.py`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHART = ROOT / "docs" / "tokens.svg"
ROWS = {
    "four list items, log-probabilities": "four list items",
    "three long options, log-probabilities": "one of three long options",
    "ten tool calls, the model predicts all results": "ten tool calls",
}
"""Rows of the table, and their names in the chart."""
BARS = {
    "one request per hole": "#9aa4b2",
    "LMQL 0.7.3": "#d9a441",
    "lmql_lite": "#2f6fde",
    "lmql_lite, second run": "#2f6fde",
}
WIDTH, LABEL, BAR, GAP = 760, 170, 17, 24


def measured(table: str) -> dict[str, list[tuple[int, int]]]:
    """Requests and tokens of each row of the chart, in the order of `BARS`."""
    found = {}
    for row, name in ROWS.items():
        line = re.search(rf"^\| {re.escape(row)} \|(.*)$", table, re.M)
        assert line is not None, row
        off, first, second, _, lmql = (cell.strip() for cell in line[1].split("|")[:5])
        found[name] = [_counts(off), _counts(lmql.split(", ")[1]), _counts(first), _counts(second)]
    return found


def _counts(cell: str) -> tuple[int, int]:
    requests, tokens = cell.replace(",", "").split(" · ")
    return int(requests), int(tokens)


def drawn(rows: dict[str, list[tuple[int, int]]]) -> str:
    """The chart as SVG. Bars are tokens, as a share of the longest bar of their group."""
    parts, y = [], 20
    for name, counts in rows.items():
        longest = max(tokens for _, tokens in counts)
        parts.append(f'<text x="0" y="{y + 4}" font-weight="600">{name}</text>')
        for (requests, tokens), (label, colour) in zip(counts, BARS.items(), strict=True):
            y += BAR + 4
            width = round((WIDTH - LABEL - 190) * tokens / longest)
            parts.append(f'<text x="{LABEL - 10}" y="{y + 4}" text-anchor="end">{label}</text>')
            parts.append(f'<rect x="{LABEL}" y="{y - 9}" width="{max(width, 2)}" height="{BAR}" fill="{colour}"/>')
            words = f"{tokens:,} tokens, {requests} {'request' if requests == 1 else 'requests'}"
            parts.append(f'<text x="{LABEL + max(width, 2) + 8}" y="{y + 4}">{words}</text>')
        y += BAR + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - GAP}" width="{WIDTH}" font-size="13"'
    body = "\n".join(parts)
    return f'{head} font-family="system-ui, sans-serif" fill="#768390">\n{body}\n</svg>\n'


if __name__ == "__main__":
    CHART.write_text(drawn(measured((ROOT / "benchmarks" / "README.md").read_text("utf-8"))), "utf-8")
