"""Who gains: the score of each client under an algorithm and under the first one, paired by client and seed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lit_cfl.metric_names import Row
from lit_cfl.runs.many import Job
from lit_cfl.scores import Score
from lit_cfl.storage.csv_log import read_frame

if TYPE_CHECKING:
    from pandas import DataFrame

_OF_CLIENTS = ("client", "name", "seed", "n_test", "true_cluster", "cluster")
COLUMNS = ("algorithm", *_OF_CLIENTS, "pairs", "reference", "score", "gain")
_ROUNDING = 1e-9  # relative gains below this are rounding errors of means over seeds


def client_gains(done: Mapping[Job, Row], first: str, score: Score) -> "DataFrame":
    """Computes each client's gain with each algorithm over the first one; a positive gain is better.

    A client is the same under several seeds if its source names it, or if the partition has the same hash. Its scores
    are then means over the seeds under which both runs score it. Otherwise each seed has clients of its own.

    Returns:
        A row per algorithm and client, with `COLUMNS`: `seed` is the client's first seed, from which its clusters are.
    """
    from pandas import DataFrame, concat  # takes most of a second

    if not done:
        return DataFrame(columns=COLUMNS)
    runs = concat(_read_clients(job, summary, score) for job, summary in done.items())
    references = runs[runs["algorithm"] == first].rename(columns={"score": "reference"})[["key", "seed", "reference"]]
    pairs = runs[runs["algorithm"] != first].merge(references, on=["key", "seed"])
    kept = {name: (name, "first") for name in _OF_CLIENTS}
    means = {"pairs": ("seed", "size"), "reference": ("reference", "mean"), "score": ("score", "mean")}
    gains = pairs.groupby(["algorithm", "key"], sort=False).agg(**kept, **means).reset_index()
    gain = (gains["score"] - gains["reference"]) * (1 if score.higher_is_better else -1)
    gains["gain"] = gain.where(gain.abs() > _ROUNDING * gains["reference"].abs(), 0.0)
    return gains[list(COLUMNS)]


def _read_clients(job: Job, summary: Row, score: Score) -> "DataFrame":
    """Reads the clients that took part in training and were scored, by a key that identifies them."""
    table = read_frame(job.folder / "clients.csv", "name")
    table = table[(table["newcomer"] != 1) & table[score.name].notna()]
    known = ["client", "name", "n_test", "true_cluster", "cluster", score.name]
    table = table.reindex(columns=known).rename(columns={score.name: "score"})
    partition = str(summary.get("partition") or f"seed {job.seed}")[:16]
    named = table["name"].notna().all() and table["name"].is_unique
    key = table["name"] if named else [f"{partition} {client}" for client in table["client"]]
    return table.assign(algorithm=job.name, seed=job.seed, key=key)


def losing_clients(gains: "DataFrame") -> dict[str, Row]:
    """Computes the columns of `results.csv` on clients that lose, by algorithm."""
    found = (gains["gain"] < 0).groupby(gains["algorithm"]).agg(["size", "mean"])
    return {name: {"paired_clients": int(size), "losing": float(share)} for name, size, share in found.itertuples()}
