"""Compares the metrics on a real local MLflow server with the runs' metrics.csv.

Not a test of the suite: the server needs another pyarrow, so this runs in a separate environment on top of the one
with Lit-CFL. `.ci/run` makes it; the commands are:

    python -m venv /tmp/mlflow
    lib='import sysconfig; print(sysconfig.get_path("purelib"))'
    echo "import site; site.addsitedir('$(python -c "$lib")')" > "$(/tmp/mlflow/bin/python -c "$lib")/layer.pth"
    /tmp/mlflow/bin/pip install "mlflow>=3,<4"
    /tmp/mlflow/bin/python tests/helpers/mlflow_check.py
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import yaml

from lit_cfl.config import catalogue
from lit_cfl.storage.csv_log import read_table

EXPERIMENT = "lit-cfl-check"


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Runs an MLflow server, and yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    words = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *words], stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_for(f"{address}/health", process, folder / "server.log")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # including its workers
        process.wait(30)


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            with urlopen(url, timeout=5):  # noqa: S310  # our own server
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the MLflow server did not start:\n{log.read_text()}")
            time.sleep(0.5)


def configuration(address: str) -> dict[str, object]:
    """Returns a smaller quickstart with MLflow's logger, configured like any other logger."""
    config = yaml.safe_load(catalogue.configs()["quickstart"].read_text())
    logger = {
        "class_path": "lightning.pytorch.loggers.MLFlowLogger",
        "init_args": {"experiment_name": EXPERIMENT, "tracking_uri": address},
    }
    config["data"]["init_args"]["num_clients"] = 12
    tracking = {"wandb": "disabled", "loggers": [logger]}
    return config | {"rounds": 4, "tracking": tracking, "pictures": {"formats": []}}


def expected(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns each metric's values by round from `metrics.csv`, without blanks."""
    rows = read_table(run / "metrics.csv")
    found = {name: [(int(row["round"]), float(row[name])) for row in rows if row[name] is not None] for name in rows[0]}
    return {name: values for name, values in found.items() if values}


def on_server(address: str) -> list[dict[str, list[tuple[int, float]]]]:
    """Returns the metrics of each run on the server, as values by round; the oldest run is first."""
    from mlflow.tracking import MlflowClient  # type: ignore[import-not-found]  # only in its own environment

    client = MlflowClient(address)
    runs = client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id], order_by=["start_time"])
    assert all(run.data.params["algorithm/class_path"].startswith("lit_cfl.algorithms.") for run in runs)
    assert [run.info.status for run in runs] == ["FINISHED"] * len(runs)
    return [
        {
            name: sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name))
            for name in run.data.metrics
        }
        for run in runs
    ]


def check() -> None:
    """Runs an experiment; raises AssertionError if its metrics on the server and in its files differ."""
    with TemporaryDirectory(prefix="lit-cfl-") as name, server(Path(name)) as address:
        folder = Path(name)
        (folder / "config.yaml").write_text(yaml.safe_dump(configuration(address)))
        words = ["run", "--config", str(folder / "config.yaml"), "--run_dir", str(folder / "run")]
        subprocess.run([sys.executable, "-m", "lit_cfl", *words], check=True, cwd=folder)
        found = on_server(address)
        wanted = [expected(run) for run in (folder / "run", folder / "run" / "baseline")]
        assert len(found) == len(wanted), f"{len(found)} runs on the server"
        for mine, theirs in zip(wanted, found, strict=True):
            assert mine.keys() == theirs.keys(), mine.keys() ^ theirs.keys()
            for metric in mine:
                assert mine[metric] == theirs[metric], (metric, mine[metric], theirs[metric])
        numbers = sum(len(values) for run in wanted for values in run.values())
        print(f"MLflow has {len(found)} runs with the {numbers} numbers of their metrics.csv")


if __name__ == "__main__":
    check()
