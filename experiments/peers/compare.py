"""Compares the speed of Lit-CFL and other frameworks on the same rounds, in turns, so that load affects all alike.

    python experiments/peers/compare.py --python fedjax=ENV/bin/python pfl=ENV/bin/python fedlab=... flower=...
                                        [--models linear mlp cnn] [--turns 3] [--one-core] [--out FILE.json]

Each framework runs in its own environment, described in the docstring of its script; frameworks not given are left out.
The data are 100 clients of 60 images; a round has 20 of them, batches of 10, 10 epochs. Every turn runs each framework
for some rounds in a fresh process and takes the median of the rounds after the first two. A round is everything between
two server states, for ours as for theirs. The table shows the median over turns in ms per client-step, and in brackets
the median of the ratio to ours within a turn.

Each has its fastest setting on two cores: pfl-research two processes of one thread, FedLab its loader of tensors in
memory, Flower two processes without its waits, FedJAX its default, which uses both cores. Ours has the rule's plan: one
thread for the linear model and the MLP, two for the CNN. With `--one-core` each has one process of one thread.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "benchmarks"))
from engines import read_processor  # noqa: E402  # a script in another folder

STEPS = 1200  # client-steps per round
NAMES = {"linear": "mclr", "mlp": "mlp", "cnn": "conv5"}
OPTIONS = {"pfl": ["--threads", "1"], "fedlab": ["--threads", "2", "--loader", "fast"], "flower": ["--tune"]}
ONE_CORE = ["taskset", "-c", "0"]
LAUNCHERS = {"pfl": ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]}


def measure_milliseconds(name: str, python: str, model: str, rounds: int, one_core: bool) -> float:
    """Measures a framework's milliseconds per client-step."""
    command = [
        *(ONE_CORE if one_core else []),
        python,
        *([] if one_core else LAUNCHERS.get(name, [])),
        str(HERE / f"bench_{name}.py"),
        "--preset",
        "flexcfl-mnist",
        "--model",
        NAMES[model],
        "--clients",
        "100",
        "--rounds",
        str(rounds),
        "--eval-every",
        "0",
        *OPTIONS.get(name, []),
        *(["--threads", "1"] if one_core else []),
    ]
    text = read_output(command)
    if found := re.search(r"([0-9.]+) ms per client-step", text):
        return float(found[1])
    seconds = re.search(r'"s_per_round_median": ([0-9.e-]+)', text)
    if seconds is None:
        raise ValueError(f"{name} printed no time: {text[-500:]}")
    return 1000 * float(seconds[1]) / STEPS


def read_output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def run_turn(pythons: Mapping[str, str], model: str, rounds: int, one_core: bool) -> dict[str, float]:
    """Measures each framework once, in milliseconds per client-step, and prints each result at once."""
    turn = {}
    for name, python in pythons.items():
        turn[name] = measure_milliseconds(name, python, model, rounds, one_core)
        print(f"{model}, {name}: {turn[name]:.3g} ms", file=sys.stderr, flush=True)
    return turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", required=True, metavar="NAME=PATH")
    parser.add_argument("--models", nargs="+", default=["linear", "mlp"], choices=list(NAMES))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--one-core", action="store_true", help="one process of one thread for each framework")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    peers = dict(pair.split("=", 1) for pair in options.python)
    pythons = {"ours": sys.executable} | peers
    print(f"{read_processor()}\n\n| model | ours | {' | '.join(peers)} |\n|{'---|' * (2 + len(peers))}", flush=True)
    found = {}
    for model in options.models:
        rounds = 4 if model == "cnn" else 30
        turns = [run_turn(pythons, model, rounds, options.one_core) for _ in range(options.turns)]
        found[model] = turns
        cells = [f"{median(turn['ours'] for turn in turns):.3g}"]
        for name in peers:
            ratio = median(turn[name] / turn["ours"] for turn in turns)
            cells.append(f"{median(turn[name] for turn in turns):.3g} ({ratio:.2g})")
        print(f"| {model} | {' | '.join(cells)} |", flush=True)
    if options.out:
        options.out.write_text(json.dumps({"processor": read_processor()} | found, indent=2) + "\n")


if __name__ == "__main__":
    main()
