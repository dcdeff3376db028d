"""Trains what is left of a comparison, and writes its tables and its picture."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from lit_cfl.compare.arguments import TABLE
from lit_cfl.compare.comparison import Comparison
from lit_cfl.compare.results import Results, collect
from lit_cfl.compare.tables import write_tables
from lit_cfl.errors import SaveError
from lit_cfl.experiment import Experiment
from lit_cfl.pictures.options import Format
from lit_cfl.progress.live import describe
from lit_cfl.progress.screen import Screen
from lit_cfl.runs.many import Job, plan_of, run_jobs
from lit_cfl.runs.run import require_comparable_runs

PICTURE = "pictures/curve"


def train(
    comparison: Comparison,
    path: Path,
    num_cpus: int | None,
    screen: Screen,
    check: Callable[[], None],
    built: Mapping[str, Experiment] = MappingProxyType({}),
    outcome: Callable[[Job], str] | None = None,
) -> Results:
    """Runs what is left of a comparison, whose files are written, and collects its results.

    Args:
        comparison: The comparison.
        path: Directory of the comparison.
        num_cpus: Cores to use; None = all.
        screen: Shows the progress.
        check: Called often; may raise an error to end the comparison.
        built: Experiments of runs in this process, which share loaded data; others are read from their files.
        outcome: Called with each run that has ended without an error; returns a line about it, to show. None =
            `describe_outcome`.
    """
    path = path.absolute()  # workers may have another current folder
    jobs = comparison.jobs(path)
    left = [job for job in jobs if not job.is_whole]
    require_comparable_runs({job.folder: comparison.experiments[job.name].for_seed(job.seed) for job in jobs})
    with screen.display(len(jobs), len(jobs) - len(left)) as display:
        errors = run_jobs(left, plan_of(comparison.first), num_cpus, display, check, outcome or describe_outcome, built)
    return collect(comparison, path, errors)


def describe_outcome(job: Job) -> str:
    """Describes the result of a run that has ended."""
    summary = job.summary
    return "" if summary is None else f"{describe(summary)}  {summary['time/elapsed_seconds']:.1f} s"


def write_results(
    comparison: Comparison, path: Path, results: Results, shown: Sequence[str] = TABLE
) -> SaveError | None:
    """Writes the tables (`results.tex` with these columns) and the picture. Returns the first write error, or None."""
    title = f"{comparison.name}: {', '.join(comparison.names)}"
    formats = comparison.first.pictures.formats
    try:
        write_tables(path, results, title, f"{PICTURE}.png" if "png" in formats else None, shown)
        if formats and not write_picture(path, results, formats):
            write_tables(path, results, title, None, shown)  # without a link to the picture
    except SaveError as error:
        return error
    return None


def write_picture(path: Path, results: Results, formats: Sequence[Format]) -> bool:
    """Draws `pictures/curve` in the requested formats. Returns False if nothing can be drawn.

    Raises:
        SaveError: the pictures could not be written.
    """
    from lit_cfl.pictures.curves import mean_curves  # matplotlib takes a second to import
    from lit_cfl.pictures.files import write_figure
    from lit_cfl.pictures.guard import DrawingGuard

    def draw() -> list[Path] | None:
        figure = mean_curves(results.tables, results.rows[0]["target"], results.score)
        return None if figure is None else write_figure(figure, path / PICTURE, formats)

    return DrawingGuard(passed=(SaveError,))(PICTURE, draw) is not None
