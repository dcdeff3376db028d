"""The section of a reproduction: the papers' numbers against ours, cell by cell and claim by claim."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lit_cfl.metric_names import Row
from lit_cfl.pictures.panels import BLUE, ORANGE, VERMILLION, Panel, Points, Style
from lit_cfl.report.blocks import Block, Figure, Section, Table, Text
from lit_cfl.report.run_files import attempt, known
from lit_cfl.reproduce.verdicts import ACCURACY_POINTS
from lit_cfl.storage.csv_log import read_table

_STYLES = {
    "matches": Style(BLUE, marker="o", size=3.6),
    "explained": Style(ORANGE, marker="^", size=3.6),
    "not reproduced": Style(VERMILLION, marker="X", size=3.6),
}
_NEEDED = {"id", "paper", "table", "method", "metric", "paper_value", "ours_mean", "verdict"}


@dataclass(frozen=True)
class Reproduction:
    """What the directory of a reproduction holds.

    Args:
        path: of it.
        tables: cells of each table of a paper, by its name.
        claims: rows of `claims.csv`.
        problems: what is missing or damaged, in sentences.
    """

    path: Path
    tables: Mapping[str, Sequence[Row]]
    claims: Sequence[Row]
    problems: Sequence[str]


def read_reproduction(path: Path) -> Reproduction:
    """Reads the directory of a reproduction, as far as it can be read."""
    problems: list[str] = []
    tables = {}
    for file in sorted(path.glob("*-[0-9]*.csv")):
        rows = attempt(problems, file, lambda file=file: read_table(file))  # type: ignore[misc]  # mypy infers no default
        if rows is not None and all(row.keys() >= _NEEDED for row in rows):
            tables[file.stem] = rows
        elif rows is not None:
            problems.append(f"{file} lacks columns of a table and is left out.")
    claims = path / "claims.csv"
    found = attempt(problems, claims, lambda: read_table(claims)) if claims.exists() else None
    return Reproduction(path, tables, found or [], problems)


def headline(reproduction: Reproduction) -> str:
    """Says in a sentence what came out."""
    counts = Counter(str(row["verdict"]) for rows in reproduction.tables.values() for row in rows)
    told = ", ".join(f"{counts[name]} {name}" for name in (*_STYLES, "not run", "no value") if counts[name])
    return f"{sum(counts.values())} cells of {len(reproduction.tables)} tables: {told}."


def section(reproduction: Reproduction, name: str) -> Section:
    """Makes the section, with a part for each table."""
    tables = reproduction.tables
    verdicts = [*_STYLES, "not run", "no value"]
    rows = [
        [table, len(cells), *(sum(row["verdict"] == verdict for row in cells) or None for verdict in verdicts)]
        for table, cells in tables.items()
    ]
    summary: list[Block] = [
        Table(
            "Cells by verdict",
            ["table", "cells", *verdicts],
            rows,
            note="matches: our default agrees; explained: the published code's options agree; by fixed rules.",
        )
    ]
    parts = [_part(table, cells, f"{name}-{table}") for table, cells in tables.items()]
    if reproduction.claims:
        parts.append(_claims(reproduction.claims))
    return Section("Paper against ours", summary, parts)


def _part(table: str, cells: Sequence[Row], name: str) -> Section:
    first = cells[0] if cells else {"paper": table, "table": ""}
    blocks: list[Block] = []
    accuracies = [row for row in cells if "accuracy" in str(row["metric"])]
    others = [row for row in cells if "accuracy" not in str(row["metric"])]
    for kind, rows, half in (("accuracy, %", accuracies, ACCURACY_POINTS), ("other numbers", others, None)):
        figure = _figure(f"{name}-{kind.split()[0].strip(',')}", kind, rows, half)
        if figure is not None:
            blocks.append(figure)
    if not blocks:
        blocks.append(Text("No cell of this table has run yet."))
    return Section(f"{first['paper']}, Table {first['table']}", [*blocks, _table(cells)])


def _figure(name: str, kind: str, cells: Sequence[Row], half: float | None) -> Figure | None:
    logarithmic = half is None
    points, drawn = [], []
    for verdict in _STYLES:
        known_cells = [
            (paper, ours, row)
            for row in cells
            if row["verdict"] == verdict
            and (paper := known(row["paper_value"])) is not None
            and (ours := known(row["ours_mean"])) is not None
            and (not logarithmic or min(paper, ours) > 0)
        ]
        if known_cells:
            notes = [_note(row) for _, _, row in known_cells]
            points.append(Points(verdict, [p for p, _, _ in known_cells], [o for _, o, _ in known_cells], notes=notes))
            drawn += known_cells
    if not drawn:
        return None
    far = max(drawn, key=lambda cell: abs(cell[0] - cell[1]))
    band = "" if half is None else f" The dotted lines are {half} points to either side."
    return Figure(
        name,
        f"Paper against ours: {kind}",
        Panel("", "paper", "ours", points=points, diagonal=half or 0.0, logarithmic=logarithmic),
        f"A mark is a cell of the table; on the line both are equal.{band}",
        f"Scatter plot of {len(drawn)} cells, the papers' numbers against ours; the farthest from the line is "
        f"{far[2]['method']}, {far[0]:g} in the paper and {far[1]:g} here.",
        _STYLES,
        _values(f"Paper against ours, {kind}: values", [row for _, _, row in drawn]),
        height=400,
    )


def _note(row: Row) -> str:
    where = ", ".join(str(row[key]) for key in ("dataset", "model") if row.get(key))
    spread = "" if row.get("ours_std") is None else f" ± {row['ours_std']:.2g}"
    metric = str(row["metric"]).replace("_", " ")
    return f"{row['method']}\n{where}\n{metric}\npaper {row['paper_value']}, ours {row['ours_mean']}{spread}"


def _values(title: str, cells: Sequence[Row]) -> Table:
    head = ["method", "data", "net", "metric", "paper", "ours", "deviation", "seeds", "published options", "verdict"]
    rows = [
        [
            str(row["method"]),
            row.get("dataset"),
            row.get("model"),
            str(row["metric"]).replace("_", " "),
            row["paper_value"],
            row["ours_mean"],
            row.get("ours_std"),
            row.get("seeds"),
            row.get("option_mean"),
            row["verdict"],
        ]
        for row in cells
    ]
    return Table(title, head, rows, folded=True)


def _table(cells: Sequence[Row]) -> Table:
    table = _values("All cells", cells)
    rows = [[*line, row.get("reason"), row.get("command")] for line, row in zip(table.rows, cells, strict=True)]
    return Table("All cells, with reasons and commands", [*table.head, "why not", "command"], rows, folded=True)


def _claims(claims: Sequence[Row]) -> Section:
    columns = [
        key
        for key in (
            "paper",
            "claim",
            "part",
            "unit",
            "paper_value",
            "ours",
            "ours_published_options",
            "seeds",
            "verdict",
            "reason",
        )
        if any(row.get(key) is not None for row in claims)
    ]
    counts = Counter(str(row.get("verdict")) for row in claims)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    rows = [[row.get(key) for key in columns] for row in claims]
    heads = [key.replace("_", " ") for key in columns]
    return Section(
        "Claims of the papers", [Text(f"{len(claims)} numbers: {told}."), Table("Claims", heads, rows, True)]
    )
