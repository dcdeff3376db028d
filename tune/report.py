"""The short table that ends `lit-cfl tune`."""

from rich.console import Console
from rich.table import Table

from lit_cfl.tune.importance import METHOD
from lit_cfl.tune.outcome import Outcome
from lit_cfl.tune.record import DEFAULT, FAILED_STATUS, FINISHED_STATUS
from lit_cfl.tune.repeats import BEST
from lit_cfl.tune.reporting import ERROR
from lit_cfl.tune.spaces import in_words
from lit_cfl.tune.study import Study


def closing_table(console: Console, study: Study, outcome: Outcome) -> None:
    """Best, default, gain, importance; then the failures."""
    trained = [row for row in outcome.rows if not row["repeats"]]
    count = {status: sum(row["status"] == status for row in trained) for status in (FINISHED_STATUS, FAILED_STATUS)}
    stopped, repeats = len(trained) - sum(count.values()), len(outcome.rows) - len(trained)
    known = f"; {repeats} settings had been tried before" if repeats else ""
    _say(
        console,
        f"{len(trained)} trials: {count[FINISHED_STATUS]} finished, {stopped} stopped early, "
        f"{count[FAILED_STATUS]} failed{known}",
    )
    if outcome.best is None:
        _say(console, "No trial ran to its end, so there is no best: raise limits.minutes, or mend what failed.")
    else:
        parameters = {k: outcome.best[k] for k in ("algorithm", *_keys(study)) if outcome.best.get(k) is not None}
        default = " (the base's own setting)" if outcome.best["origin"] == DEFAULT else ""
        _say(console, f"Best: {in_words(parameters)}{default}")
        metric = outcome.objective.metric
        _say(console, f"{metric} of its trial: {outcome.best[metric]:.4f}")
    if outcome.repeated is not None:
        _figures(console, outcome)
    if outcome.importance:
        shares = ", ".join(f"{key} {share:.2f}" for key, share in outcome.importance.items())
        _say(console, f"Importance ({METHOD}): {shares}")
    for row in trained:
        if row["status"] == FAILED_STATUS:
            _say(console, f"failed: {row['trial_id']}: {row[ERROR]}")
    if outcome.to_upload is not None:
        _say(console, outcome.to_upload)
    _say(console, f"Files: {outcome.path}")


def _keys(study: Study) -> list[str]:
    return [parameter.key for parameter in study.searched().parameters]


def _figures(console: Console, outcome: Outcome) -> None:
    repeated = outcome.repeated
    if repeated is None:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    metrics = (outcome.objective.metric, outcome.objective.test)
    for heading in ("", *metrics):
        table.add_column(heading, justify="right" if heading else "left")
    for setting in (BEST, DEFAULT):
        figures = repeated.figures[setting]
        table.add_row(setting, *(str(figures[name]) if name in figures else "-" for name in metrics))
    table.add_row("gain", "", "-" if repeated.gain is None else str(repeated.gain))
    console.print(table)
    _say(console, f"(means and 95 % intervals over the new seeds {repeated.seeds})")
    for line in repeated.failed:
        _say(console, f"not repeated: {line}")


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False)
