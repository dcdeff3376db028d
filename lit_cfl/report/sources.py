"""Determines the content of a directory: a run, a comparison or a study."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lit_cfl.compare.arguments import RECORD
from lit_cfl.errors import InputError
from lit_cfl.pictures.run_files import RunFiles, attempt, is_run, read_run
from lit_cfl.runs.resume import differences
from lit_cfl.scores import ACCURACY, Score
from lit_cfl.storage.config_file import stored_config
from lit_cfl.storage.error_file import ERROR_FILE
from lit_cfl.storage.yaml_files import parse_yaml

Kind = Literal["run", "comparison", "study"]
_STUDY = "study.yaml"
_MAY_DIFFER = ("partition_seed", "partition_file", "batch_size")  # options that may differ for the same data


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one setting, one per seed.

    Args:
        name: Displayed name, unique on the page.
        runs: One run or more, by seed.
        path: Directory of the runs.
    """

    name: str
    runs: Sequence[RunFiles]
    path: Path

    @property
    def first(self) -> RunFiles:
        """Representative run: the first with a completed round."""
        return next((run for run in self.runs if run.rows), self.runs[0])

    @property
    def counted(self) -> Sequence[RunFiles]:
        """The runs included in figures over the seeds: finished ones, or all if none has finished."""
        return [run for run in self.runs if run.over] or self.runs

    @property
    def score(self) -> Score:
        """The main score of the group's task, with the direction that a finished run recorded."""
        return next((run for run in self.runs if run.summary), self.first).score

    @property
    def status(self) -> str:
        """The progress of the group's runs, in words."""
        if len(self.runs) == 1:
            return self.first.status
        over = sum(run.over for run in self.runs)
        return "finished" if over == len(self.runs) else f"{over} of {len(self.runs)} runs finished"


@dataclass(frozen=True, eq=False)
class ReportSource:
    """A directory and its content.

    Args:
        path: Path of the source.
        kind: Kind of the source.
        groups: Runs of the source; none for a study.
        problems: Sentences about anything missing or damaged apart from the files of runs.
    """

    path: Path
    kind: Kind
    groups: Sequence[Group] = ()
    problems: list[str] = field(default_factory=list)


def _find_kind(path: Path) -> Kind | None:
    if (path / RECORD).is_file():
        return "comparison"
    if (path / _STUDY).is_file():
        return "study"
    return "run" if is_run(path) or any(map(is_run, path.glob("seed-*"))) else None


def read_source(path: Path) -> ReportSource:
    """Reads a directory. Raises InputError if it contains no run, comparison or study."""
    kind = _find_kind(path)
    if kind is None:
        inside = sorted(part for part in path.iterdir() if part.is_dir() and _find_kind(part))
        hint = f", but its folders do: give one of them, such as {inside[-1]}" if inside else ""
        raise InputError(f"{path} holds no run, comparison or study{hint}")
    if kind == "comparison":
        return _comparison(path)
    return _run(path) if kind == "run" else ReportSource(path, kind)


def _run(path: Path) -> ReportSource:
    """Reads a run, or the runs of several seeds, with their baselines."""
    parts = sorted((part for part in path.glob("seed-*") if is_run(part)), key=_seed_of)
    problems: list[str] = []
    if parts:
        config = attempt(problems, path / "config.yaml", lambda: stored_config(path)) or {}
        missing = [f"seed-{seed}" for seed in config.get("seeds", []) if path / f"seed-{seed}" not in parts]
        problems += [f"{', '.join(missing)} did not start yet."] if missing else []
    return ReportSource(path, "run", _run_and_baseline(path, parts or [path]), problems)


def _run_and_baseline(path: Path, parts: Sequence[Path]) -> list[Group]:
    mine = [read_run(part) for part in parts]
    others = [read_run(part / "baseline") for part in parts if is_run(part / "baseline")]
    groups = [Group(mine[0].algorithm, mine, path)]
    return groups + ([Group(f"{others[0].algorithm} (baseline)", others, path)] if others else [])


def _seed_of(path: Path) -> tuple[int, str]:
    number = path.name.removeprefix("seed-")
    return (int(number) if number.isdigit() else 2**62), path.name


def _comparison(path: Path) -> ReportSource:
    import yaml

    problems: list[str] = []
    try:
        record: Mapping[str, Any] = parse_yaml((path / RECORD).read_text("utf-8"))
        names, seeds = [str(name) for name in record["algorithms"]], list(record["seeds"])
    except (InputError, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        problems.append(f"{error}.")
        names = sorted(part.name for part in path.iterdir() if any(map(is_run, part.glob("seed-*"))))
        seeds = []
    groups = []
    for name in names:
        parts = sorted((part for part in (path / name).glob("seed-*") if is_run(part)), key=_seed_of)
        if parts:
            groups.append(Group(name, [read_run(part) for part in parts], path / name))
        folders = [path / name / f"seed-{seed}" for seed in seeds]
        missing = [folder.name for folder in folders if folder not in parts and not (folder / ERROR_FILE).exists()]
        if missing:
            problems.append(f"{name}: {', '.join(missing)} did not start yet.")
    return ReportSource(path, "comparison", groups, problems)


def list_groups(sources: Sequence[ReportSource]) -> list[Group]:
    """Lists the groups of all sources; makes equal names distinct by adding the directory."""
    all_groups = [(source, group) for source in sources for group in source.groups]
    names = [group.name for _, group in all_groups]
    distinct = [
        replace(group, name=f"{group.name} ({source.path.name})") if names.count(group.name) > 1 else group
        for source, group in all_groups
    ]
    again = [group.name for group in distinct]
    return [
        replace(group, name=f"{group.name} {again[:k].count(group.name) + 1}") if again.count(group.name) > 1 else group
        for k, group in enumerate(distinct)
    ]


def require_comparable(groups: Sequence[Group]) -> None:
    """Checks that groups have the same data and the same score.

    Raises:
        InputError: data or scores differ; the message names two directories, and what differs.
    """
    different = find_different_data(groups)
    if different is not None:
        one, other, what = different
        raise InputError(f"{one} and {other} have different data and cannot be compared ({what}); make a page for each")
    known = [group for group in groups if group.first.config.get("data")]
    for group in known[1:]:
        first = known[0]
        if first.first.rows and group.first.rows and first.score.name != group.score.name:
            raise InputError(
                f"{first.path} is scored by {first.score.name}, {group.path} by {group.score.name}: they cannot be "
                "compared; make a page for each"
            )


def find_different_data(groups: Sequence[Group]) -> tuple[Path, Path, str] | None:
    """Finds two directories with different data, and describes the difference; None if there is none."""
    known = [group for group in groups if group.first.config.get("data")]
    for group in known[1:]:
        found = differences(_data_of(known[0]), _data_of(group))
        if found:
            more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
            return known[0].path, group.path, "; ".join(found[:3]) + more
    # files may have changed between the runs, and a run made in Python records few options
    seen: dict[str, tuple[Path, str]] = {}
    for run in (run for group in groups for run in group.runs):
        about = run.partition
        digests = {"examples": about.get("data"), f"clients under seed {about.get('seed')}": about.get("hash")}
        for what, digest in digests.items():
            if digest is not None:
                path, other = seen.setdefault(what, (run.path, digest))
                if other != digest:
                    return path, run.path, f"equal options, but different {what}: SHA-256 {other[:12]}, {digest[:12]}"
    return None


def _data_of(group: Group) -> dict[str, Any]:
    """Returns a group's options of data, without those that may differ for the same data."""
    data = json.loads(json.dumps(group.first.config["data"], default=str))
    options = data.get("init_args") if isinstance(data, dict) else None
    if isinstance(options, dict):
        data["init_args"] = {key: value for key, value in options.items() if key not in _MAY_DIFFER}
    return {"data": data}


def main_score_of(groups: Sequence[Group]) -> Score:
    """Returns the score by which all groups are measured, from a finished run if possible."""
    over = [group for group in groups if any(run.summary for run in group.runs)]
    return next((group.score for group in (*over, *groups) if group.first.rows), ACCURACY)
