"""Who gains: the score of each client under an algorithm and under the first one, paired by client and seed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lit_cfl.metric_names import Row
from lit_cfl.runs.many import Job
from lit_cfl.scores import Score
from lit_cfl.storage.csv_log import read_frame

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FILE = "client_gains.csv"
COLUMNS = (
    *("algorithm", "client", "name", "seed", "pairs", "n_test", "true_cluster", "cluster"),
    *("reference", "score", "gain"),
)
_ROUNDING = 1e-9  # relative losses below this come from rounding, as a mean over seeds may


def client_gains(done: Mapping[Job, Row], first: str, score: Score) -> "DataFrame":
    """Computes how much each client gains with each algorithm over the first one.

    A client is the same under several seeds if its source names it, or if the partition has the same hash. Its scores
    are then means over the seeds under which both runs score it. Otherwise each seed has clients of its own.

    Args:
        done: Summaries of finished runs; runs of one seed are paired if they have the same partition.
        first: Name of the algorithm with which the others are compared.
        score: Score to compare; a positive gain is better, whatever its direction.

    Returns:
        A row per algorithm and client, with `COLUMNS`: `seed` is the client's first seed, from which its clusters are.
    """
    from pandas import DataFrame, concat  # takes most of a second

    references = {job.seed: _read_clients(job, about, score) for job, about in done.items() if job.name == first}
    pairs = []
    for job, about in done.items():
        reference = references.get(job.seed)
        if job.name != first and reference is not None:
            mine = _read_clients(job, about, score)
            both = mine.join(reference["score"].rename("reference"), how="inner")
            pairs.append(both.assign(algorithm=job.name, seed=job.seed).reset_index())
    if not any(map(len, pairs)):
        return DataFrame(columns=COLUMNS)
    kept = {name: (name, "first") for name in ("client", "name", "seed", "n_test", "true_cluster", "cluster")}
    means = {name: (name, "mean") for name in ("reference", "score")}
    grouped = concat(pairs).groupby(["algorithm", "key"], sort=False)
    gains = grouped.agg(pairs=("seed", "size"), **kept, **means).reset_index()
    gains["gain"] = (gains["score"] - gains["reference"]) * (1 if score.higher_is_better else -1)
    return gains[list(COLUMNS)]


def _read_clients(job: Job, summary: Row, score: Score) -> "DataFrame":
    """Reads the clients that took part in training and were scored, by a key that identifies them."""
    table = read_frame(job.folder / "clients.csv", "name")
    table = table[(table["newcomer"] != 1) & table[score.name].notna()].rename(columns={score.name: "score"})
    partition = summary.get("partition") or f"seed {job.seed}"
    key = [f"{partition} {client}" for client in table["client"]]
    if "name" in table and table["name"].notna().all() and table["name"].is_unique:
        key = list(table["name"])
    known = ["client", "name", "n_test", "true_cluster", "cluster", "score"]
    return table.reindex(columns=known).assign(key=key).set_index("key")


def loses(gains: "DataFrame") -> "Series":
    """Returns for each row whether the client loses."""
    return gains["gain"] < -_ROUNDING * gains["reference"].abs()


def losing_clients(gains: "DataFrame") -> dict[str, Row]:
    """Computes the columns of `results.csv` on clients that lose, by algorithm."""
    found = loses(gains).groupby(gains["algorithm"]).agg(["size", "mean"])
    return {
        name: {"clients_paired": int(size), "clients_losing": float(share)} for name, size, share in found.itertuples()
    }
