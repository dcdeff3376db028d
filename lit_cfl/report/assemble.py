"""Puts a page together from what directories hold."""

from collections.abc import Callable, Sequence
from pathlib import Path

from lit_cfl.report import clusters, events, over_rounds, overview, settings
from lit_cfl.report.blocks import Block, Figure, Page, Section
from lit_cfl.report.clusters import Share
from lit_cfl.report.data_at_hand import DataAtHand, load_data
from lit_cfl.report.run_files import RunFiles
from lit_cfl.report.sources import Group, Source, main_score_of, named_apart, read_source, require_comparable
from lit_cfl.scores import Score

Say = Callable[[str], None]


def make_page(paths: Sequence[Path], command: Sequence[str], with_data: bool = True, say: Say = lambda _: None) -> Page:
    """Makes the page of some directories.

    Args:
        paths: of runs, comparisons, studies and reproductions.
        command: that makes the page again.
        with_data: whether to load the clients' data, for labels and images.
        say: is told what takes a while.

    Raises:
        InputError: a directory holds nothing of ours, or runs cannot be compared.
    """
    sources = [read_source(path) for path in dict.fromkeys(paths)]
    groups = named_apart(sources)
    require_comparable(groups)
    score = main_score_of(groups)
    sections, problems = [], [problem for source in sources for problem in source.problems]
    if groups:
        sections += [overview.section(groups, score), over_rounds.section(groups, score)]
        found, more = _found_clusters(groups, score, with_data, say)
        sections += found
        problems += more
    lines = overview.headline(groups, score)
    for number, source in enumerate(sources):
        found_here = _study_or_reproduction(source, f"s{number}")
        if found_here is not None:
            section, line, more = found_here
            sections.append(section)
            lines.append(line)
            problems += more
    sections.append(settings.section(groups, command))
    problems += [problem for group in groups for run in group.runs for problem in [*_state(group, run), *run.problems]]
    shown = [section for section in sections if section.blocks or section.parts]
    return Page(_title(sources), lines, list(dict.fromkeys(problems)), shown, any(source.live for source in sources))


def _study_or_reproduction(source: Source, name: str) -> tuple[Section, str, Sequence[str]] | None:
    if source.kind == "study":
        from lit_cfl.report import study  # imports Optuna

        searched = study.read_study(source.path)
        return study.section(searched, name), study.headline(searched), searched.problems
    if source.kind == "reproduction":
        from lit_cfl.report import reproduction

        repeated = reproduction.read_reproduction(source.path)
        return reproduction.section(repeated, name), reproduction.headline(repeated), repeated.problems
    return None


def _title(sources: Sequence[Source]) -> str:
    names = [source.path.resolve().name for source in sources]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    kinds = {source.kind for source in sources}
    what = sources[0].kind.capitalize() if len(kinds) == 1 else "Report"
    return f"{what}{'s' if len(sources) > 1 and len(kinds) == 1 else ''} {shown}"


def _state(group: Group, run: RunFiles) -> list[str]:
    return [] if run.over else [f"{group.name}, {run.path}: {run.status}."]


def _found_clusters(
    groups: Sequence[Group], score: Score, with_data: bool, say: Say
) -> tuple[list[Section], list[str]]:
    """Makes the section of the clusters, with a part for each group; and says what is missing."""
    shown = [group for group in groups if group.first.rows]
    share, parts, problems = Share.among(len(shown)), [], []
    for number, group in enumerate(shown):
        say(f"{group.name}: reading clusters")
        data = DataAtHand()
        if with_data and (group.first.snapshots or not number):
            say(f"{group.name}: loading the data of {group.first.path}")
            data = load_data(group.first)
            problems += [data.problem] if data.problem else []
        blocks = _of_group(group, f"g{number}", score, share, data)
        if blocks:
            seed = f", seed {group.first.seed}" if len(group.runs) > 1 else ""
            parts.append(Section(f"{group.name}{seed}", blocks))
    if not parts:
        return [], problems
    return [Section("Clusters and clients", [], parts)], problems


def _of_group(group: Group, name: str, score: Score, share: Share, data: DataAtHand) -> list[Block]:
    run = group.first
    figures: list[Figure | None] = [
        clusters.memberships(run, name, share),
        clusters.similarity(run, name, share),
        clusters.client_map(run, name, score, data),
        clusters.histogram(run, name, score),
        clusters.sizes(run, name),
        events.tree(run, name),
        events.layers(run, name),
        *events.shifts(run, name),
    ]
    images = data.images(run)
    return [*(figure for figure in figures if figure is not None), *([images] if images else [])]
