# SPDX-License-Identifier: Apache-2.0
"""Draws one SVG per question of docs/performance.md. Pure: records in, text out; called by tools/make_performance.py.

Questions with peers or goals become bars: how many times as fast as the peer, where there is none as the goal; factors stand
as they are. Grids without peers become lines over the grid's columns.
"""
import html
import math

from result_records import columns_of

BLUE, RED, COLOURS = "#4c78a8", "#e45756", ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756")
WIDTH, LEFT, RIGHT, ROW, TOP = 900, 430, 60, 17, 40


def text(x, y, words, anchor="start", small=False):
    style = ' class="n"' if small else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{html.escape(words)}</text>'


def line(x1, y1, x2, y2, colour, width=1):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def picture(height, title, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">'
            '<style>.n{font-size:9px;fill:#666}</style><rect width="100%" height="100%" fill="#fff"/>'
            + text(10, 16, title) + "".join(parts) + "</svg>\n")


def relative(record):
    """Speed over the peer's, or over the goal's: (ours, the goal's or None); None where there is neither."""
    def speed(value, reference):
        return reference / value if record["better"] == "less" else value / reference
    peer, goal = record.get("peer"), record.get("goal")
    if record["unit"] == "×" and record["better"] == "more":
        return record["median"], goal
    reference = peer["value"] if peer else goal
    if reference is None:
        return None
    return speed(record["median"], reference), None if goal is None else speed(goal, reference)


def bars(title, records, missed):
    drawn = [(record, relative(record)) for record in records if relative(record)]
    most = max(max(ours, goal or 0, 1) for _, (ours, goal) in drawn)
    scale = (WIDTH - LEFT - RIGHT) / most
    bottom = TOP + ROW * len(drawn)
    parts = []
    step = 0.5 if most <= 4 else 1
    for tick in range(int(most / step) + 1):
        x = LEFT + tick * step * scale
        parts += [line(x, TOP - 6, x, bottom, "#ddd"), text(x, TOP - 10, f"{tick * step:g}×", "middle", True)]
    for index, (record, (ours, goal)) in enumerate(drawn):
        y = TOP + ROW * index
        colour = RED if missed(record) else BLUE
        parts += [text(LEFT - 6, y + 10, record["what"].replace("`", ""), "end"),
                  f'<rect x="{LEFT}" y="{y}" width="{ours * scale:.1f}" height="12" fill="{colour}"/>',
                  text(LEFT + max(ours, goal or 0) * scale + 4, y + 9, f"{ours:.2f}", small=True)]
        if goal is not None:
            parts.append(line(LEFT + goal * scale, y - 2, LEFT + goal * scale, y + 14, "#000", 2))
    one = LEFT + scale
    parts.append(line(one, TOP - 6, one, bottom, "#666"))
    note = "times as fast as the peer or, without one, the goal; black: goal; red: missed"
    return picture(bottom + 20, title, parts + [text(10, bottom + 12, note, small=True)])


def lines(title, records):
    """Values over columns, both by their logarithm, a line per series of the unit that most records have."""
    units = [record["unit"] for record in records]
    unit = max(sorted(set(units)), key=units.count)
    if "tokens/s" in units:
        unit = "tokens/s"
    records = [record for record in records if record["unit"] == unit]
    columns = columns_of(records)
    low, high = (math.log(f(record["median"] for record in records)) for f in (min, max))
    left, bottom, top = 60, 300, TOP
    def place(record):
        x = left + columns.index(record["x"]) * (WIDTH - left - 220) / (len(columns) - 1)
        return x, bottom - (math.log(record["median"]) - low) / (high - low) * (bottom - top)
    parts = []
    for index, column in enumerate(columns):
        x = left + index * (WIDTH - left - 220) / (len(columns) - 1)
        parts += [line(x, top, x, bottom, "#ddd"), text(x, bottom + 14, column, "middle", True)]
    for index, series in enumerate(dict.fromkeys(record["series"] for record in records)):
        colour = COLOURS[index % len(COLOURS)]
        own = [record for record in records if record["series"] == series]
        points = [place(record) for record in own]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                     + " ".join(f"{x:.1f},{y:.1f}" for x, y in points) + '"/>')
        parts += [text(x, y - 6, f"{record['median']:,}", "middle", True) for record, (x, y) in zip(own, points)]
        parts.append(text(points[-1][0] + 20, points[-1][1] + 4, series.replace("`", "")))
    return picture(bottom + 24, f"{title}, {unit}", parts)


def draw(question, missed):
    records = question["records"]
    if question["layout"] == "grid" and not any(record.get("peer") for record in records):
        return lines(question["title"], records)
    return bars(question["title"], records, missed)
