"""Writes the files of a finished run."""

from collections.abc import Mapping

from torch import Tensor

from lit_cfl.client_scores import score_clients
from lit_cfl.evaluation import Evaluation, place_for_scoring
from lit_cfl.experiment import PreparedRun
from lit_cfl.metric_names import Row
from lit_cfl.rounds import Round
from lit_cfl.runs.rows import client_rows, membership_arrays
from lit_cfl.runs.run_directory import RunDirectory
from lit_cfl.scores import describe_scores
from lit_cfl.storage.atomic_writes import write_json


def write_end(
    prepared: PreparedRun,
    directory: RunDirectory,
    r: Round,
    evaluation: Evaluation,
    memberships: Mapping[int, Tensor],
    best: Mapping[str, float],
    more: Row,
) -> Row:
    """Writes `memberships.npz`, `clients.csv` and finally `summary.json`. Returns the summary.

    Args:
        r, evaluation: Last round, and its evaluation.
        memberships: Cluster of each client `[clients]` by round.
        best: Best test value of each score, among evaluations that cover every client.
        more: Further entries of the summary, about the whole run.
    """
    directory.write_arrays("memberships.npz", membership_arrays(memberships, r.data))
    newcomers = _score_newcomers(prepared, r)
    found = [evaluation, *([newcomers] if newcomers else [])]
    models = 0 if evaluation.weights is None else evaluation.weights.shape[1]
    rows = client_rows(r.data, found, len(prepared.engine.scores))
    directory.write_clients(rows, models, named=bool(r.data.names))
    summary: Row = {"algorithm": type(prepared.experiment.algorithm).__name__, "seed": prepared.seed}
    summary |= {"partition": prepared.fingerprint["partition"]} | more | directory.rows[-1]
    summary["scores"] = describe_scores(prepared.engine.scores)
    summary |= {score.best_column: best.get(score.name) for score in prepared.engine.scores}
    known = [row["clusters/silhouette"] for row in directory.rows if row["clusters/silhouette"] is not None]
    summary["clusters/silhouette"] = known[-1] if known else None  # known if the algorithm compared clients
    if newcomers and "test" in newcomers.scores:
        weighted = newcomers.scores["test"].weighted_means()
        summary |= {f"test/newcomers_{name}": value for name, value in weighted.items()}
    write_json(directory.path / "summary.json", summary)
    return summary


def _score_newcomers(prepared: PreparedRun, r: Round) -> Evaluation | None:
    """Places and scores the clients held out of training, without changing the state."""
    if r.data.newcomers is None:
        return None
    algorithm, engine = prepared.experiment.algorithm, prepared.engine
    clients = r.data.newcomers.nonzero().flatten()
    placed = place_for_scoring(algorithm, r.state, engine, r.data, clients, r.index)
    clients, placed = clients[placed.index >= 0], placed.select(placed.index >= 0)
    index, own, weights = placed.index, placed.own, placed.weights
    scores = score_clients(engine, placed.models, index, clients, r.data, "test", own=own, weights=weights)
    return Evaluation(clients, index, {"test": scores}, {}, full_coverage=True, weights=weights)
