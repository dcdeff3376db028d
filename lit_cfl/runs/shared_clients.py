"""Compares two runs on the clients scored in both. A client without a model has no score."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from statistics import fmean

from lit_cfl.metric_names import Row
from lit_cfl.scores import ACCURACY, Score
from lit_cfl.storage.csv_log import read_columns

_FEW_TESTS = 5  # test examples below which a client's score says little


@dataclass(frozen=True)
class ScoredClients:
    """Clients of a run that took part in training and were scored on test data in the last round.

    Args:
        sizes: Test examples of each client.
        values: Score of each client.
        by_size: Weight clients by their number of examples; False if tokens are the weight or a mean is transformed.
    """

    sizes: Mapping[int, int]
    values: Mapping[int, float]
    by_size: bool = True


@dataclass(frozen=True)
class SharedClients:
    """Scores of two runs (or of two runs per seed, averaged) over the clients scored in both.

    Args:
        clients: Number of clients scored in both runs.
        mine, others: Test columns of each run over these clients; see `columns_over`.
    """

    clients: float
    mine: Row
    others: Row


def describe_small_tests(sizes: Collection[int]) -> str:
    """Describes clients with so few test examples that their score is mostly chance; empty if none or all are.

    Args:
        sizes: Test examples of each client.
    """
    few = sum(0 < size < _FEW_TESTS for size in sizes)
    if few in (0, len(sizes)):
        return ""
    has, counts = ("has", "it counts") if few == 1 else ("have", "they count")
    return (
        f"{few} of {len(sizes)} clients {has} fewer than {_FEW_TESTS} test examples: in means over clients {counts} as "
        "much as the others"
    )


def scores_everyone(summary: Row) -> bool:
    """Returns whether a run scored every client in training in its last round."""
    return bool(summary["clients/evaluated"] == summary["clusters/assigned"] + summary["clusters/unobserved"])


def read_scored(path: Path, summary: Row, score: Score = ACCURACY) -> ScoredClients:
    """Reads the scored clients from `clients.csv` of a run directory with this summary."""
    sizes, values = {}, {}
    for client, examples, value, newcomer in read_columns(
        path / "clients.csv", ["client", "n_test", score.name, "newcomer"]
    ):
        if value is not None and not newcomer:
            sizes[client], values[client] = examples, value
    whole = summary[f"test/weighted_{score.name}"]
    known = bool(values) and whole is not None  # None = infinite or undefined
    by_size = known and isclose(fmean(values.values(), sizes.values()), whole, rel_tol=1e-6)
    return ScoredClients(sizes, values, by_size)


def columns_over(scored: ScoredClients, clients: Collection[int], score: Score = ACCURACY) -> Row:
    """Computes a score's weighted mean, mean and worst tenth over some of the clients; None = unknown."""
    values = [scored.values[client] for client in clients]
    names = [f"test/{mean}_{score.name}" for mean in ("weighted", "mean", "worst10")]
    if not values:
        return dict.fromkeys(names)
    weighted = fmean(values, [scored.sizes[client] for client in clients]) if scored.by_size else None
    worst = sorted(values, reverse=not score.higher_is_better)[: max(1, len(values) // 10)]
    return dict(zip(names, (weighted, fmean(values), fmean(worst)), strict=True))


def compare_shared(
    pairs: Sequence[tuple[ScoredClients, ScoredClients]], score: Score = ACCURACY
) -> SharedClients | None:
    """Compares two runs on the clients scored in both, averaged over seeds; None if both scored the same clients."""
    if all(mine.values.keys() == others.values.keys() for mine, others in pairs):
        return None
    shared = [sorted(mine.values.keys() & others.values.keys()) for mine, others in pairs]
    of_mine = [columns_over(mine, both, score) for (mine, _), both in zip(pairs, shared, strict=True)]
    of_others = [columns_over(others, both, score) for (_, others), both in zip(pairs, shared, strict=True)]
    return SharedClients(fmean(map(len, shared)), _means(of_mine), _means(of_others))


def _means(rows: Sequence[Row]) -> Row:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: None if None in values else fmean(values) for name, values in columns.items()}
