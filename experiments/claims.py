"""Judges the papers' quantitative sentences by the recorded runs; writes `claims.csv` and `claims.md`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Literal

from experiments.cells import DEFAULT, PUBLISHED, Cell, PaperTable
from experiments.files import Row, read_page_text, read_yaml
from experiments.markdown import markdown_table
from experiments.pages import explain_open
from experiments.results import RecordedResults
from lit_cfl.storage import write_rows, write_text

Unit = Literal["points", "ratio", "percent", "clusters"]
Found = Literal["holds", "holds for its cells", "same direction", "does not hold", "not run"]
Known = tuple[PaperTable, Cell]
POINTS, SHARE, PRINTED = 1.5, 0.1, 0.1
_ROUNDING = 1e-9
_FILE = Path(__file__).parent / "claims.yaml"
_WORST_FIRST: tuple[Found, ...] = ("does not hold", "same direction", "holds for its cells", "holds", "not run")


@dataclass(frozen=True)
class Part:
    """One number of a claim.

    Args:
        of: The quantity that the number measures.
        value: The number as printed.
        unit: Unit, which also sets how the number is computed from cells; see `claims.yaml`.
        plus, minus: Patterns of cells' ids.
        metric: Score in `runs.csv`; None for each cell's own metric.
        total: True for a sum instead of a mean.
        not_run: Reason why we cannot compute the number.
    """

    of: str
    value: float
    unit: Unit
    plus: str = ""
    minus: str = ""
    metric: str | None = None
    total: bool = False
    not_run: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper that states numbers.

    Args:
        id: Our name of the claim.
        paper: Name of the paper.
        claim: The claim in our words.
        parts: Numbers of the claim.
        note: Remarks for a reader.
    """

    id: str
    paper: str
    claim: str
    parts: tuple[Part, ...]
    note: str = ""


@dataclass(frozen=True)
class JudgedPart:
    """A number of a claim, compared with the paper's cells and with our runs.

    Args:
        part: The judged part of the claim.
        recomputed: Value computed from the paper's own cells; None if they do not determine it.
        rows: Number of table rows behind the number.
        rows_run: Number of these rows that ran.
        compared_with: The paper's number, corrected by its cells for rows that did not run; if the number does not
            follow from these cells, their value instead (C35).
        ours: Our number, under our defaults.
        published: Our number under the published code's options, if a row has runs with them.
        seeds: Smallest number of seeds of a row.
        reason: Reason why our number is missing.
    """

    part: Part
    recomputed: float | None
    rows: int
    rows_run: int
    compared_with: float
    ours: float | None
    published: float | None
    seeds: int
    reason: str

    @property
    def follows(self) -> bool | None:
        """Returns whether the paper's number agrees with the paper's own tables, up to its last digit."""
        return None if self.recomputed is None else _agrees_with_cells(self.part, self.recomputed)

    @cached_property
    def verdict(self) -> Found:
        """Returns the verdict of `compare_numbers`; `holds` is weakened if the paper's cells contradict the number."""
        found = compare_numbers(self.part.unit, self.compared_with, self.ours)
        return "holds for its cells" if found == "holds" and self.follows is False else found


def read_claims() -> list[Claim]:
    """Reads the claims."""
    content = read_yaml(_FILE)
    return [Claim(**(entry | {"parts": tuple(Part(**part) for part in entry["parts"])})) for entry in content]


def compare_numbers(unit: Unit, paper: float, ours: float | None) -> Found:
    """Compares our number with the paper's.

    Returns:
        `holds` within 1.5 points, within 10 % (ratios and percentages), or for an equal number of clusters; `same
        direction` if it is further away, on the same side of 0 (of 1 for ratios); else `does not hold`.
    """
    if ours is None:
        return "not run"
    if unit == "clusters":
        return "holds" if abs(ours - paper) < 0.5 else "does not hold"
    near = POINTS if unit == "points" else SHARE * abs(paper)
    if abs(ours - paper) <= near + _ROUNDING:
        return "holds"
    even = 1.0 if unit == "ratio" else 0.0
    return "same direction" if (ours - even) * (paper - even) > 0 else "does not hold"


def choose_worst(parts: Sequence[JudgedPart]) -> Found:
    """Returns the verdict of a claim: the worst verdict among its numbers that have runs."""
    found = {part.verdict for part in parts}
    return next(verdict for verdict in _WORST_FIRST if verdict in found)


def judge_parts(claim: Claim, results: RecordedResults) -> list[JudgedPart]:
    """Judges every number of a claim."""
    return [_judge_part(part, results) for part in claim.parts]


def _judge_part(part: Part, results: RecordedResults) -> JudgedPart:
    if part.not_run:
        return JudgedPart(part, None, 0, 0, part.value, None, None, 0, part.not_run)
    pairs = _pair_cells(part, results)

    def ours(known: Known, variant: str = DEFAULT) -> float | None:
        table, cell = known
        return results.mean(table, cell, part.metric or table.metric(cell, variant), variant)

    def published(known: Known) -> float | None:
        return ours(known, PUBLISHED if results.rows(*known, PUBLISHED) else DEFAULT)

    def paper(known: Known) -> float | None:
        return None if part.metric else known[1].value

    run = [pair for pair in pairs if None not in map(ours, pair)]
    recomputed, shown = _compute_number(part, pairs, paper), _compute_number(part, run, paper)
    of_missing = 0.0 if recomputed is None or shown is None else shown - recomputed
    cells = [known for pair in run for known in pair]
    with_options = any(results.rows(*known, PUBLISHED) for known in cells)
    return JudgedPart(
        part,
        recomputed,
        len(pairs),
        len(run),
        (part.value if recomputed is None or _agrees_with_cells(part, recomputed) else recomputed) + of_missing,
        _compute_number(part, run, ours),
        _compute_number(part, run, published) if with_options else None,
        min((len(results.rows(*known)) for known in cells), default=0),
        "" if run else _explain_open(pairs),
    )


def _agrees_with_cells(part: Part, recomputed: float) -> bool:
    return abs(recomputed - part.value) <= PRINTED + _ROUNDING


def _pair_cells(part: Part, results: RecordedResults) -> list[tuple[Known, ...]]:
    """Pairs the `plus` and `minus` cells of a claim's number, row by row; skips rows that the paper leaves blank."""
    sides = [results.cells(pattern) for pattern in (part.plus, part.minus) if pattern]
    pairs = list(zip(*sides, strict=True))
    return [pair for pair in pairs if all(cell.value is not None or cell.extra for _, cell in pair)]


def _compute_number(
    part: Part, pairs: Sequence[tuple[Known, ...]], number: Callable[[Known], float | None]
) -> float | None:
    """Computes a claim's number from the numbers of its cells; None if one is missing."""
    found = [[number(known) for known in pair] for pair in pairs]
    values = [[value for value in pair if value is not None] for pair in found]
    if not found or any(None in pair for pair in found):
        return None
    if part.unit == "points":
        gaps = [plus - minus for plus, minus in values]
        return sum(gaps) if part.total else fmean(gaps)
    if part.unit == "clusters":
        return fmean(plus for (plus,) in values)
    ratio = fmean(plus for plus, _ in values) / fmean(minus for _, minus in values)
    return ratio if part.unit == "ratio" else 100 * (ratio - 1)


def _explain_open(pairs: Sequence[tuple[Known, ...]]) -> str:
    cells = [known for pair in pairs for known in pair]
    missing = [reason for table, cell in cells if (reason := table.not_run(cell)) is not None]
    return "; ".join(dict.fromkeys(missing or [explain_open(table, cell) for table, cell in cells]))


def write_claims(folder: Path, results: RecordedResults) -> list[Found]:
    """Writes `claims.csv` and `claims.md`; returns the verdict of each claim."""
    judged = {claim: judge_parts(claim, results) for claim in read_claims()}
    rows = [_row(claim, parts, part) for claim, parts in judged.items() for part in parts]
    write_rows(folder / "claims.csv", list(rows[0]), rows)
    write_text(folder / "claims.md", "\n".join(_page(judged)))
    return [choose_worst(parts) for parts in judged.values()]


def _row(claim: Claim, parts: Sequence[JudgedPart], judged: JudgedPart) -> Row:
    ran, part = judged.rows_run > 0, judged.part
    return {
        "id": claim.id,
        "paper": claim.paper,
        "claim": claim.claim,
        "part": part.of,
        "unit": part.unit,
        "paper_value": part.value,
        "from_its_tables": _number(judged.recomputed),
        "follows_from_its_tables": {None: "", True: "yes", False: "no"}[judged.follows],
        "rows": judged.rows or "",
        "rows_run": judged.rows_run if judged.rows else "",
        "compared_with": _number(judged.compared_with) if ran else "",
        "ours": _number(judged.ours),
        "ours_published_options": _number(judged.published),
        "seeds": judged.seeds or "",
        "verdict": judged.verdict,
        "claim_verdict": choose_worst(parts),
        "reason": judged.reason,
        "note": claim.note,
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


_HEADINGS = (
    "claim",
    "of",
    "unit",
    "paper",
    "its tables",
    "rows",
    "compared with",
    "ours",
    "published code's options",
    "verdict",
)


def _page(judged: dict[Claim, list[JudgedPart]]) -> list[str]:
    verdicts = [choose_worst(parts) for parts in judged.values()]
    counts = ", ".join(f"`{name}` {verdicts.count(name)}" for name in reversed(_WORST_FIRST) if name in verdicts)
    lines = [read_page_text("claims").format(count=len(judged), counts=counts), ""]
    for paper in dict.fromkeys(claim.paper for claim in judged):
        rows = [_cells(claim, part) for claim, parts in judged.items() if claim.paper == paper for part in parts]
        lines += [f"## {paper}", "", *markdown_table(_HEADINGS, rows)]
        notes = [f"* *{claim.claim}*: {claim.note}." for claim in judged if claim.paper == paper and claim.note]
        lines += [*notes, ""] if notes else []
    return lines


def _cells(claim: Claim, judged: JudgedPart) -> list[str]:
    row = _row(claim, [judged], judged)
    differs = " (differs)" if judged.follows is False else ""
    seeds = f" ({judged.seeds} seeds)" if judged.seeds > 1 else " (one seed)" if judged.seeds else ""
    verdict = judged.verdict + (f": {judged.reason}" if judged.reason else "")
    rows = f"{judged.rows_run} of {judged.rows}" if judged.rows else ""
    cells = [claim.claim, judged.part.of, judged.part.unit, f"{judged.part.value:g}"]
    cells += [row["from_its_tables"] + differs, rows, row["compared_with"], row["ours"] + seeds]
    return [*cells, row["ours_published_options"], verdict]
