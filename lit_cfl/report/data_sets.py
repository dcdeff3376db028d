"""The page of comparisons on different data: methods by their mean rank over the data sets."""

from collections.abc import Sequence
from functools import partial

from lit_cfl.errors import InputError
from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.pictures.ranks import rank_diagram
from lit_cfl.report.blocks import Block, Section, Table, Text
from lit_cfl.report.overview import describe_uneven, last_value, read_comparison
from lit_cfl.report.sources import ReportSource, find_different_data, main_score_of
from lit_cfl.scores import Score
from lit_cfl.statistics import LEVEL, Ranking, friedman, interval

_FEWEST = 3  # minimum number of methods for Friedman's test


def are_data_sets(sources: Sequence[ReportSource]) -> bool:
    """Returns whether these are comparisons on different data."""
    groups = [group for source in sources for group in source.groups]
    several = len(sources) > 1 and all(source.kind == "comparison" for source in sources)
    return several and find_different_data(groups) is not None


def list_sections(sources: Sequence[ReportSource], problems: list[str]) -> tuple[list[str], list[Section]]:
    """Builds the summary line of the page, the section with ranks, and a section of tables per comparison.

    Args:
        sources: Comparisons, one per data set.
        problems: List to which missing, damaged and left out parts are added.

    Raises:
        InputError: the comparisons are scored differently, or have fewer than three methods in common.
    """
    score = _common_score(sources)
    names = _names(sources)
    scores = {name: _scores(source, score) for name, source in zip(names, sources, strict=True)}
    for name, source in zip(names, sources, strict=True):
        if uneven := describe_uneven(source.groups):
            problems.append(f"{name}: the ranked figures are {uneven}.")
    ranking = friedman(_of_common_methods(scores, problems), score.higher_is_better)
    rows = [
        [method, *(f"{scores[name][method]:.3f}" for name in names), f"{ranking.mean_ranks[method]:.2f}"]
        for method in ranking.mean_ranks
    ]
    note = f"Test {score.title} after the last round, weighted by examples: mean over the seeds."
    blocks: list[Block] = [Table("By data set", ["method", *names, "mean rank"], rows, note=note)]
    figure = DrawingGuard(lambda line: problems.append(f"{line}."))("mean ranks", partial(rank_diagram, ranking))
    sections = [Section("Methods over the data sets", blocks if figure is None else [*blocks, figure])]
    for name, source in zip(names, sources, strict=True):
        said, tables, found = read_comparison(source.path, score)
        problems += [f"{name}: {problem}" for problem in found]
        sections.append(Section(name, [*map(Text, said), *tables]))
    return [_headline(ranking)], sections


def _headline(ranking: Ranking) -> str:
    listed = ", ".join(f"{method} {rank:.2f}" for method, rank in ranking.mean_ranks.items())
    found = f"Friedman's test cannot tell them apart (p = {ranking.p_value:.2g})"
    if ranking.p_value < 1 - LEVEL:
        found = f"Nemenyi's test tells apart those that differ by more than {ranking.critical_difference:.2f}"
    return f"Mean ranks over {ranking.data_sets} data sets (1 = best on each): {listed}. {found}."


def _common_score(sources: Sequence[ReportSource]) -> Score:
    found = [main_score_of(source.groups) for source in sources]
    for source, score in zip(sources, found, strict=True):
        if score.name != found[0].name:
            raise InputError(
                f"{sources[0].path} is scored by {found[0].name}, {source.path} by {score.name}: they cannot be ranked "
                "together; make a page for each"
            )
    return found[0]


def _names(sources: Sequence[ReportSource]) -> list[str]:
    names = [source.path.resolve().name for source in sources]
    return names if len(set(names)) == len(names) else [str(source.path) for source in sources]


def _scores(source: ReportSource, score: Score) -> dict[str, float]:
    """Computes each method's mean score over the seeds, for methods whose finished runs all have it."""
    column = f"test/weighted_{score.name}"
    values = ((group.name, [last_value(run, column) for run in group.runs if run.over]) for group in source.groups)
    return {name: mean for name, own in values if (mean := interval(own).mean) is not None}


def _of_common_methods(scores: dict[str, dict[str, float]], problems: list[str]) -> dict[str, dict[str, float]]:
    every = list(dict.fromkeys(method for row in scores.values() for method in row))
    common = [method for method in every if all(method in row for row in scores.values())]
    if len(common) < _FEWEST:
        raise InputError(
            f"{', '.join(scores)} are comparisons on different data, with {len(common)} finished methods in common "
            f"({', '.join(common) or 'none'}); to rank methods over data sets give three or more, or make a page for "
            "each"
        )
    left = [method for method in every if method not in common]
    if left:
        problems.append(f"Not in every comparison, and left out of the ranks: {', '.join(left)}.")
    return {name: {method: row[method] for method in common} for name, row in scores.items()}
