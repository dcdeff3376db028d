"""The names of all metrics: columns of `metrics.csv` and keys of every logger. `docs/results.md` explains each."""

_SPLIT_METRICS = ("weighted_accuracy", "mean_accuracy", "std_accuracy", "worst10_accuracy", "loss", "global_accuracy")

METRICS = (
    "round",
    *(f"{split}/{metric}" for split in ("val", "test") for metric in _SPLIT_METRICS),
    "train/loss", "train/discrepancy",
    "clusters/count", "clusters/assigned", "clusters/unobserved", "clusters/ari", "clusters/ami", "clusters/purity",
    "clusters/matched_accuracy", "clusters/silhouette", "clusters/churn",
    "traffic/models_down", "traffic/models_up", "traffic/mib",
    "traffic/round_models_down", "traffic/round_models_up", "traffic/round_mib",
    "clients/evaluated", "clients/skipped",
    "shift/clients", "shift/examples",
    "time/training_seconds", "time/evaluation_seconds", "time/elapsed_seconds",
)  # fmt: skip
CLUSTERS = ("round", "cluster", "parent", "size", "n_test", "accuracy", "loss", "u", "v")
CLIENTS = ("client", "cluster", "true_cluster", "n_train", "n_val", "n_test", "accuracy", "loss", "newcomer")
SHIFTS = ("round", "shift", "client", "partner", "examples", "cluster_before", "cluster_after")
LOWER_IS_BETTER = ("loss", "discrepancy", "std_accuracy")  # ends of their names
CHOOSABLE = tuple(name for name in METRICS if name.startswith(("val/", "train/")))  # test data only report
