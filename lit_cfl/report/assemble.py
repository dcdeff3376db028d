"""Builds a page from the contents of directories."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lit_cfl.compare.arguments import CLIENT_GAINS, SEARCHES
from lit_cfl.compare.search_table import read_searches, search_cells
from lit_cfl.pictures.figure import Figure, Table
from lit_cfl.pictures.figures import RUN_FIGURES
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.run_files import RunFiles, attempt
from lit_cfl.pictures.sample import MOST_CLIENTS
from lit_cfl.report import data_sets, gains, over_rounds, overview, settings
from lit_cfl.report.blocks import Page, Section, Text
from lit_cfl.report.sources import Group, ReportSource, list_groups, main_score_of, read_source, require_comparable

_CLIENTS, _FEWEST = 1500, 60  # maximum number of clients in matrices and maps of a page, and the minimum per run


def make_page(paths: Sequence[Path], command: Sequence[str]) -> Page:
    """Builds the page that shows the runs, comparisons and studies in these directories.

    Args:
        paths: Paths of runs, comparisons and studies. Comparisons on different data are ranked over the data sets.
        command: Command that regenerates the page.

    Raises:
        InputError: a directory contains no run, comparison or study, or runs cannot be compared.
    """
    sources = [read_source(path) for path in dict.fromkeys(paths)]
    if data_sets.are_data_sets(sources):
        return _page_over_data_sets(sources, command)
    groups = list_groups(sources)
    require_comparable(groups)
    score = main_score_of(groups)
    problems = [problem for source in sources for problem in source.problems]
    guard = DrawingGuard(lambda line: problems.append(f"{line}."))
    sections, lines = [], list[str]()
    if groups:
        comparisons = [source.path for source in sources if source.kind == "comparison"]
        tables, gaining = [], list[Section]()
        for path in comparisons:
            said, found, wrong = overview.read_comparison(path, score)
            name = path.resolve().name
            several = len(comparisons) > 1
            lines += [f"{name}: {sentence}" if several else sentence for sentence in said]
            tables += [replace(table, title=f"{table.title}: {name}") if several else table for table in found]
            problems += wrong
            file, label = path / CLIENT_GAINS, slug(name) if several else ""
            part = attempt(problems, file, partial(gains.section, file, label, score, guard))
            gaining += [part] if part else []
        lines += overview.headline(groups, score)
        sections += [overview.section(groups, score, tables), *gaining, over_rounds.section(groups, score, guard)]
        sections.append(_clusters(groups))
    for number, source in enumerate(sources):
        name = f"{slug(source.path.name)}-{number + 1}"
        sections += [*_study(source, name, lines, problems, guard), _searches(source.path, name, guard)]
    sections.append(settings.section(groups, command))
    for group in groups:
        for run in group.runs:
            problems += [*([] if run.over else [f"{group.name}, {run.path}: {run.status}."]), *run.problems]
    shown = [section for section in sections if section.blocks or section.parts]
    return Page(_title(sources), lines, list(dict.fromkeys(problems)), shown)


def _page_over_data_sets(sources: Sequence[ReportSource], command: Sequence[str]) -> Page:
    problems = [f"{source.path.name}: {problem}" for source in sources for problem in source.problems]
    lines, sections = data_sets.list_sections(sources, problems)
    shown = [section for section in sections if section.blocks]
    return Page(_title(sources), lines, problems, [*shown, settings.section([], command)])


def _clusters(groups: Sequence[Group]) -> Section:
    """Builds the section on clusters, with a part per group."""
    shown = [group for group in groups if group.first.rows or group.first.snapshots or group.first.memberships]
    parts: list[Section] = []
    slugs = [slug(group.name) for group in shown]
    for number, group in enumerate(shown):
        name = slugs[number] if slugs.count(slugs[number]) == 1 else f"{slugs[number]}-{number + 1}"
        figures = figures_of(group.first, name, len(shown))
        if figures:
            seed = f", seed {group.first.seed}" if len(group.runs) > 1 else ""
            clients = group.first.path / "clients.csv"
            where = [Text(f"The cluster and the scores of each client: {clients}")] if clients.exists() else []
            parts.append(Section(f"{group.name}{seed}", [*figures, *where]))
    return Section("Clusters and clients", [], parts)


def figures_of(run: RunFiles, name: str, runs: int) -> list[Figure]:
    """Makes a run's figures for a page of `runs` runs, as far as its files suffice; their names begin with `name`.

    Problems with damaged tables are recorded.
    """
    guard = DrawingGuard(lambda line: run.problems.append(f"{run.path}: {line}."))  # tables may hold anything
    most = max(_FEWEST, min(MOST_CLIENTS, _CLIENTS // runs))
    made = [guard(kind.title, partial(kind.draw, run, most)) for kind in RUN_FIGURES if kind.on_page]
    return [replace(figure, name=f"{name}-{figure.name}") for figure in made if figure is not None]


def _study(
    source: ReportSource, name: str, lines: list[str], problems: list[str], guard: DrawingGuard
) -> list[Section]:
    """Builds the section of a study, and adds to the page's summary lines and problems."""
    if source.kind != "study":
        return []
    from lit_cfl.report import study  # imports Optuna

    searched = study.read_study(source.path)
    lines.append(study.headline(searched))
    problems += searched.problems
    return [study.section(searched, name, guard)]


def _searches(path: Path, name: str, guard: DrawingGuard) -> Section:
    """Builds the section of the searches that came before a comparison's runs: their table, and a part for each."""
    parts, rows = [], read_searches(path)
    places = {row["algorithm"]: place for place, row in enumerate(rows)}
    folders = sorted(file.parent for file in (path / SEARCHES).glob("*/study.yaml"))
    for folder in sorted(folders, key=lambda folder: places.get(folder.name, 0)):
        from lit_cfl.report import study  # imports Optuna

        own = study.section(study.read_study(folder), f"{name}-{slug(folder.name)}", guard)
        parts.append(replace(own, title=folder.name))
    head, *lines = search_cells(rows) if rows else [[]]
    return Section("Searches", [Table("Chosen settings", head, lines)] if rows else [], parts)


def slug(text: str) -> str:
    """Converts any text to a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "run"


def _title(sources: Sequence[ReportSource]) -> str:
    names = [source.path.resolve().name for source in sources]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    kinds = {source.kind for source in sources}
    plural = {"study": "Studies"}.get(sources[0].kind, f"{sources[0].kind.capitalize()}s")
    if len(kinds) > 1:
        return f"Report on {shown}"
    return f"{plural if len(sources) > 1 else sources[0].kind.capitalize()} {shown}"
