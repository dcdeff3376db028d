"""Puts a page together from what directories hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lit_cfl.pictures.guard import DrawingGuard
from lit_cfl.report import clusters, events, over_rounds, overview, settings, similar_clients
from lit_cfl.report.blocks import Block, Page, Section
from lit_cfl.report.comparison import read_comparison
from lit_cfl.report.data_at_hand import DataAtHand, load_data
from lit_cfl.report.paper import slug
from lit_cfl.report.run_files import RunFiles
from lit_cfl.report.sources import Group, ReportSource, main_score_of, named_apart, read_source, require_comparable
from lit_cfl.scores import Score

Say = Callable[[str], None]


@dataclass
class Maker:
    """Makes the page of some directories, again and again while they grow.

    Args:
        paths: of runs, comparisons and studies.
        command: that makes the page again.
        with_data: whether to load the clients' data, for labels and images.
        say: is told what takes a while.
    """

    paths: Sequence[Path]
    command: Sequence[str]
    with_data: bool = True
    say: Say = lambda line: None

    def __post_init__(self) -> None:
        self._data: dict[tuple[Path, bool], DataAtHand] = {}  # by run, and whether it is over: they are loaded once

    def make(self) -> Page:
        """Reads the directories and makes the page.

        Raises:
            InputError: a directory holds nothing of ours, or runs cannot be compared.
        """
        sources = [read_source(path) for path in dict.fromkeys(self.paths)]
        groups = named_apart(sources)
        require_comparable(groups)
        score = main_score_of(groups)
        problems = [problem for source in sources for problem in source.problems]
        guard = DrawingGuard(lambda line: problems.append(f"{line}."))
        sections, lines = [], overview.headline(groups, score)
        if groups:
            compared = [read_comparison(s.path, score) for s in sources if s.kind == "comparison"]
            tables = [table for found, _ in compared for table in found]
            problems += [problem for _, found in compared for problem in found]
            sections += [overview.section(groups, score, tables), over_rounds.section(groups, score, guard)]
            sections.append(self._clusters(groups, score, problems))
        for number, source in enumerate(sources):
            sections += _study(source, f"{slug(source.path.name)}-{number + 1}", lines, problems, guard)
        sections.append(settings.section(groups, self.command))
        for group in groups:
            problems += [problem for run in group.runs for problem in [*_state(group, run), *run.problems]]
        shown = [section for section in sections if section.blocks or section.parts]
        return Page(_title(sources), lines, list(dict.fromkeys(problems)), shown, any(map(_is_live, sources)))

    def _clusters(self, groups: Sequence[Group], score: Score, problems: list[str]) -> Section:
        """Makes the section of the clusters, with a part for each group."""
        shown = [group for group in groups if group.first.rows or group.first.snapshots or group.first.memberships]
        parts: list[Section] = []
        slugs = [slug(group.name) for group in shown]
        for number, group in enumerate(shown):
            name = slugs[number] if slugs.count(slugs[number]) == 1 else f"{slugs[number]}-{number + 1}"
            self.say(f"{group.name}: clusters")
            data = self._data_of(group) if group.first.snapshots or not number else DataAtHand()
            problems += [data.problem] if data.problem else []
            blocks = _of_group(group, name, score, len(shown), data)
            if blocks:
                seed = f", seed {group.first.seed}" if len(group.runs) > 1 else ""
                parts.append(Section(f"{group.name}{seed}", blocks))
        return Section("Clusters and clients", [], parts)

    def _data_of(self, group: Group) -> DataAtHand:
        run = group.first
        if not self.with_data or not (run.over or (run.path / "checkpoint.pt").exists()):
            return DataAtHand()
        key = run.path, run.over  # its clients' data may shift until then
        if key not in self._data:
            self.say(f"{group.name}: loading the data of {run.path}")
            self._data[key] = load_data(run)
        return self._data[key]


def _study(
    source: ReportSource, name: str, lines: list[str], problems: list[str], guard: DrawingGuard
) -> list[Section]:
    """Makes the section of a study; adds to the lines that sum the page up, and to the problems."""
    if source.kind != "study":
        return []
    from lit_cfl.report import study  # imports Optuna

    searched = study.read_study(source.path)
    lines.append(study.headline(searched))
    problems += searched.problems
    return [study.section(searched, name, guard)]


def _is_live(source: ReportSource) -> bool:
    return any(run.running for group in source.groups for run in group.runs)


def _title(sources: Sequence[ReportSource]) -> str:
    names = [source.path.resolve().name for source in sources]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    kinds = {source.kind for source in sources}
    plural = {"study": "Studies"}.get(sources[0].kind, f"{sources[0].kind.capitalize()}s")
    if len(kinds) > 1:
        return f"Report on {shown}"
    return f"{plural if len(sources) > 1 else sources[0].kind.capitalize()} {shown}"


def _state(group: Group, run: RunFiles) -> list[str]:
    return [] if run.over else [f"{group.name}, {run.path}: {run.status}."]


def _of_group(group: Group, name: str, score: Score, runs: int, data: DataAtHand) -> list[Block]:
    """Makes all that the files of a run allow. What damaged tables make impossible is noted and left out."""
    run = group.first
    makers: dict[str, Callable[[], Block | None]] = {
        "memberships": lambda: clusters.memberships(run, name, runs),
        "similarity": lambda: similar_clients.similarity(run, name, runs),
        "map": lambda: similar_clients.client_map(run, name, score, data),
        "scores of the clients": lambda: clusters.histogram(run, name, score),
        "sizes": lambda: clusters.sizes(run, name),
        "splits": lambda: events.tree(run, name),
        "layers": lambda: events.layers(run, name),
        "shifts": lambda: events.timeline(run, name),
        "delays": lambda: events.delays(run, name),
        "images": lambda: data.images(run),
    }
    guard = DrawingGuard(lambda line: run.problems.append(f"{run.path}: {line}."))  # tables may hold anything
    blocks = [guard(what, make) for what, make in makers.items()]
    return [block for block in blocks if block is not None]
