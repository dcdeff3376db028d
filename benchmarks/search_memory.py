"""Measures the memory of each further trial of a search, with shared data and with a copy of the data per trial.

Runs studies of two and of six concurrent trials on Fashion-MNIST (each trains until it is stopped), and prints the
proportional memory (PSS: a page shared by n processes counts 1/n in each) of all processes of the study once all
trials train: with the data in Ray's object store, and with each trial loading its own copy.

    LITCFL_DATA=... python benchmarks/search_memory.py [--trials 2 6] [--how shared own]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import yaml

_MARK = "LITCFL_MEMORY_BENCHMARK"
_PATIENCE_SECONDS = 500.0
_SETTLE_SECONDS = 5.0
_STUDY: dict[str, Any] = {
    "name": "memory",
    "base": {
        "name": "memory",
        "seeds": [0],
        "rounds": 100_000,
        "cohort_size": 10,
        "data": {
            "class_path": "FashionMNIST",
            "init_args": {"partition": {"class_path": "Ditto500", "init_args": {"seed": 233}}, "validation": 0.1},
        },
        "task": {
            "class_path": "Classification",
            "init_args": {
                "net": {"class_path": "MCLR"},
                "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.01}},
            },
        },
        "local": {"epochs": 1, "batch_size": 10},
        "algorithm": {"class_path": "FedAvg"},
        "plan": {"compile": False},
        "tracking": {"wandb": "disabled"},
    },
    "space": {"task.optimizer.lr": {"uniform": [0.01, 0.1]}},
    "scheduler": "FIFOScheduler",
    "num_repeats": 0,
}
_WAYS = {"shared": "", "own": "import lit_cfl.tune.search\nlit_cfl.tune.search.share = lambda experiment: None\n"}
_COMMAND = "from lit_cfl.cli.main import main\nif __name__ == '__main__':\n    main()\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of concurrent trials.")
    parser.add_argument("--trials", type=int, nargs=2, default=[2, 6])
    parser.add_argument("--how", nargs="+", choices=list(_WAYS), default=list(_WAYS))
    given = parser.parse_args()
    few, many = given.trials
    each = {}
    for how in given.how:
        held = [measure_study(count, _WAYS[how]) for count in (few, many)]
        each[how] = round((held[1] - held[0]) / (many - few))
        print(f"{how}: {few} trials {held[0]:.0f} MiB, {many} trials {held[1]:.0f} MiB", flush=True)
    print(json.dumps({"MiB of each further trial": each}))


def measure_study(trials: int, first: str) -> float:
    """Measures the PSS in MiB of all processes of a study while `trials` trials train."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        share = int(10_000 * (os.cpu_count() or 1) / trials) / 10_000
        study = _STUDY | {"limits": {"trials": trials}, "resources": {"cpus": min(1.0, share)}}
        (folder / "study.yaml").write_text(yaml.safe_dump(study))
        words = ["tune", "--config", str(folder / "study.yaml"), "--study_dir", str(folder / "study")]
        mark = f"{trials}-{monotonic()}"
        process = subprocess.Popen(
            [sys.executable, "-c", first + _COMMAND, *words], env=os.environ | {_MARK: mark}, stdout=subprocess.DEVNULL
        )
        try:
            deadline = monotonic() + _PATIENCE_SECONDS
            while sum(count_rounds(file) > 1 for file in folder.glob("study/trials/*/metrics.csv")) < trials:
                if process.poll() is not None or monotonic() > deadline:
                    raise SystemExit("not all trials have started")
                sleep(0.5)
            sleep(_SETTLE_SECONDS)
            return sum(read_pss_mib(path) for path in Path("/proc").glob("[0-9]*") if belongs_to_study(path, mark))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def count_rounds(file: Path) -> int:
    return file.read_text().count("\n") - 1


def belongs_to_study(path: Path, mark: str) -> bool:
    """Returns whether a process belongs to the study, according to its environment."""
    try:
        return f"{_MARK}={mark}".encode() in (path / "environ").read_bytes()
    except OSError:
        return False


def read_pss_mib(path: Path) -> float:
    try:
        lines = (path / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    main()
