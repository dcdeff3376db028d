"""Writes the directories that golden files show: numbers differ, sizes are unequal, and orders are cycles.

Nothing is trained: each number is exact.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from digits_experiment import digits
from made_runs import config, finish, made_run, metric_row, seal, write_table
from optuna.trial import TrialState, create_trial
from studies import STUDY

from lit_cfl.algorithms import IFCA, FedAvg, Oracle
from lit_cfl.config.variants import build
from lit_cfl.experiment import Experiment
from lit_cfl.metric_names import CLIENTS, METRICS
from lit_cfl.storage.config_file import write_config
from lit_cfl.tune.check import PreparedStudy
from lit_cfl.tune.journal import NUMBER, REPEATS, RESULT, Journal
from lit_cfl.tune.objective import Objective
from lit_cfl.tune.result import StudyFiles
from lit_cfl.tune.study import Limits, Study
from lit_cfl.tune.trial import TrialJob

# test, validation, worst tenth of rounds 1 to 4
ACCURACIES = (0.25, 0.375, 0.0625), (0.5, 0.4375, 0.125), (0.46875, 0.5, 0.1875), (0.75, 0.625, 0.3125)


def usual_row(number: int) -> dict[str, Any]:
    """Makes a row of `metrics.csv` in which all numbers differ."""
    test, validation, worst = ACCURACIES[number - 1]
    row = {"test/weighted_accuracy": test, "val/weighted_accuracy": validation, "test/worst10_accuracy": worst}
    row |= {"test/mean_accuracy": test - 0.03125, "test/loss": 3.5 - 0.75 * number, "train/loss": 2.25 / number}
    row |= {"train/discrepancy": 0.125 * number**2, "clusters/count": (1, 2, 2, 3)[number - 1]}
    row |= {"clusters/ari": (0.0, 0.25, 0.4375, 0.6875)[number - 1], "clusters/churn": 0.5 / number}
    row |= {"clusters/ami": 0.1875 * number, "clusters/assigned": 9, "clusters/unobserved": 0, "clients/evaluated": 9}
    row |= {"traffic/mib": (1.5, 3.25, 4.0, 6.5)[number - 1], "traffic/round_mib": (1.5, 1.75, 0.75, 2.5)[number - 1]}
    row |= {"local/steps": 40 * number**2, "local/examples": 310 * number, "local/scored_examples": 70 * number}
    row |= {"time/elapsed_seconds": 3.25 * number**2, "time/training_seconds": 1.25, "clusters/silhouette": 0.5625}
    return metric_row(number, **row)


def change_summary(path: Path, **changes: Any) -> Path:
    file = path / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return seal(path)


def rows_of(columns: Sequence[str], values: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in values]


COMPARED_ACCURACIES = {  # by round, for each seed
    "FedAvg": ((0.25, 0.375, 0.5), (0.25, 0.5, 0.625), (0.25, 0.375, 0.4375)),
    "IFCA": ((0.25, 0.5, 0.75), (0.25, 0.3125, 0.375), (0.125, 0.625, 0.9375)),
    "Oracle": ((0.5, 0.75, 0.875), (0.625, 0.6875, 0.75), (0.25, 0.75, 1.0)),
}
_MIB = {"FedAvg": (0.5, 1.0, 2.5), "IFCA": (4.0, 5.0, 9.0), "Oracle": (0.25, 0.375, 0.75)}  # per round
_CLUSTERS = {"FedAvg": (1, 1, 1), "IFCA": (2, 3, 2), "Oracle": (4, 4, 4)}


def compared_experiments() -> dict[str, Experiment]:
    return {type(own).__name__: digits(algorithm=own) for own in (FedAvg(), IFCA(2), Oracle())}


def compared_runs(path: Path, missing: Sequence[tuple[str, int]] = ()) -> Path:
    for (place, name), seed in product(enumerate(COMPARED_ACCURACIES), range(3)):
        if (name, seed) in missing:
            continue
        accuracies, mib, clusters = (part[name][seed] for part in (COMPARED_ACCURACIES, _MIB, _CLUSTERS))
        rows = [
            usual_row(number)
            | {"test/weighted_accuracy": accuracy, "val/weighted_accuracy": accuracy - 0.0625 * (seed + 1)}
            | {"traffic/mib": mib * number, "traffic/round_mib": mib, "clusters/count": clusters}
            | {"clusters/ari": 0.25 * place + 0.0625 * seed, "clusters/assigned": 12, "clients/evaluated": 12}
            | {"local/steps": round(100 * mib * number), "local/examples": round(900 * mib * number)}
            | {"time/elapsed_seconds": 10.0 * (seed + 1) ** 2 * (place + 1)}
            | {"test/loss": 2.0 - 0.25 * seed - 0.125 * number}
            for number, accuracy in enumerate(accuracies, 1)
        ]
        folder = path / name / f"seed-{seed}"
        folder.mkdir(parents=True)
        own = {"class_path": f"lit_cfl.algorithms.{name}", "init_args": {}}
        write_config(folder, config(algorithm=own, seeds=[seed], rounds=3))
        write_table(folder / "metrics.csv", METRICS, rows)
        sizes = enumerate((2, 9, 30, 5))
        clients = [{"client": k, "n_test": size, "accuracy": 0.125 * k, "newcomer": 0} for k, size in sizes]
        write_table(folder / "clients.csv", CLIENTS, clients)
        finish(folder, rows, algorithm=name, seed=seed, stopped="enough" if (name, seed) == ("IFCA", 1) else None)
    return path


RANKED = {  # accuracy after the last round for both seeds, by data set: each order of the methods differs
    "digits": {"FedAvg": (0.375, 0.625), "IFCA": (0.75, 0.875), "CFL": (0.6875, 0.875), "Local": (0.5625, 0.5)},
    "letters": {"FedAvg": (0.5, 0.5), "IFCA": (0.625, 0.75), "CFL": (0.8125, 0.75), "Local": (0.25, 0.5)},
    "faces": {"FedAvg": (0.625, 0.625), "IFCA": (0.6875, 0.6875), "CFL": (0.5, 0.5), "Local": (0.75, 0.875)},
}


def ranked_comparison(path: Path, clients: int, scores: Mapping[str, Sequence[float]]) -> Path:
    """Writes a comparison on data with this number of clients, whose best round is not the last one."""
    data = {"class_path": "lit_cfl.datamodules.Digits", "init_args": {"num_clients": clients}}
    for name, values in scores.items():
        for seed, value in enumerate(values):
            last = {"test/weighted_accuracy": value, "clients/evaluated": clients}
            rows = [metric_row(1, **{"test/weighted_accuracy": 0.99}), metric_row(2, **last)]
            folder = made_run(path / name / f"seed-{seed}", rows, over=False, data=data, snapshots=0)
            (folder / "clusters.csv").unlink()
            finish(folder, rows, algorithm=name, seed=seed)
    seeds = list(range(max(map(len, scores.values()))))
    (path / "compare.yaml").write_text(f"name: x\nalgorithms: {list(scores)}\nseeds: {seeds}\ntarget: null\n")
    return path


METRIC, ETA, CLUSTERS_OF = "val/weighted_accuracy", "algorithm.eta_g", "algorithm.num_clusters"


def study_files(path: Path) -> StudyFiles:
    base = STUDY["base"] | {"pictures": {"formats": ["png"]}}
    study = Study(**(STUDY | {"base": base, "limits": Limits(), "seeds": [0, 3], "num_repeats": 2}))
    prepared = PreparedStudy(TrialJob(study, Objective(), path / "trials"), build(base), {}, None, None)
    return StudyFiles(prepared, Journal(path / "study.log", ["maximize"]), path)


def add_trial(files: StudyFiles, number: int, values: Mapping[str, Any], state: TrialState, **figures: Any) -> None:
    """Adds a trial to a study's journal; `repeats` names the trial whose setting it repeats."""
    repeats = {REPEATS: figures.pop("repeats")} if "repeats" in figures else {}
    figures = {key.replace("mib", "traffic/mib").replace("score", METRIC): value for key, value in figures.items()}
    space = files.prepared.study.search_space.distributions()
    drawn = {"params": dict(values), "distributions": {key: space[key] for key in values}}
    value = figures.get(METRIC, 0.0) if state == TrialState.COMPLETE else None
    trial = create_trial(state=state, value=value, user_attrs={NUMBER: number, RESULT: figures, **repeats}, **drawn)
    files.journal.study.add_trial(trial)
    if not repeats:
        folder = files.path / "trials" / f"{number:04d}"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(f"name: '{folder.name}'\nseeds: [3]\n")


def searched_study(path: Path) -> Path:
    """Writes a study of twelve trials, whose best score is that of a stopped one, and its runs on new seeds."""
    path.mkdir(parents=True)
    files = study_files(path)
    files.prepared.study.write(path / "study.yaml")
    for number in range(10):
        # neither the score, the traffic nor the value of eta_g is in the order of the trials
        values = {ETA: 0.03125 * ((number * 7) % 10), CLUSTERS_OF: 2 + (number % 3 == 1)} if number else {}
        figures = {"score": 0.25 + 0.0625 * ((number * 3) % 10), "mib": 1.0 + 0.5 * ((number * 4) % 9)}
        more = {"rounds": 4 + number, "seconds": 60.0 + number, "finished": True}
        add_trial(files, number, values, TrialState.COMPLETE, **more, **figures)
    stopped = {"score": 0.9375, "mib": 0.25, "rounds": 1, "seconds": 5.0}
    add_trial(files, 10, {ETA: 0.3, CLUSTERS_OF: 2}, TrialState.PRUNED, **stopped)
    add_trial(files, 11, {ETA: 0.125, CLUSTERS_OF: 3}, TrialState.PRUNED, rounds=0, error="RuntimeError: too <warm>")
    add_trial(files, 12, {ETA: 0.21875, CLUSTERS_OF: 3}, TrialState.COMPLETE, repeats=1)
    files.write()
    compared_runs(path / "repeats", [("Oracle", seed) for seed in range(3)])
    (path / "repeats" / "FedAvg").rename(path / "repeats" / "default")
    (path / "repeats" / "IFCA").rename(path / "repeats" / "0003")
    return path
