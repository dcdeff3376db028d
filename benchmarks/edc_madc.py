"""Measures to what extent EDC is a linear function of MADC (FedGroup, Figure 5).

    LITCFL_DATA=DIR python benchmarks/edc_madc.py [--out docs/reproduction/edc_madc.csv] [--data NAME ...]

The clients of the group cold start (alpha = 20) are drawn and pre-trained as in FedGroup, under the experiment's seed.
Writes a row for each pair of them, with three significant digits; `python -m benchmarks.reproduction summary` draws the
figure.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

from lit_cfl.algorithms import FedGroup
from lit_cfl.clustering import cosine_similarity, edc, madc
from lit_cfl.config.variants import base_config, build
from lit_cfl.metric_names import Row
from lit_cfl.seeds import generator
from lit_cfl.storage.csv_log import CsvLog

CONFIGS = {
    "MNIST-MCLR": "paper/fedgroup/mnist_mclr",
    "MNIST-MLP": "paper/fedgroup/mnist_mlp",
    "Synthetic(1,1)-MCLR": "paper/fedgroup/synthetic_mclr",
}
COLUMNS = ("data", "seed", "client", "other", "madc", "edc")


def measure_pairs(data: str) -> Iterator[Row]:
    """Yields EDC and MADC of each pair of clients in FedGroup's cold start."""
    experiment = build(base_config(CONFIGS[data]))
    algorithm, seed = experiment.algorithm, experiment.seeds[0]
    assert isinstance(algorithm, FedGroup)
    prepared = experiment.prepare(seed)
    work = prepared.engine.at(0, prepared.data)
    state, _ = algorithm.init(work, generator(seed, "init", 0))
    clients = state.founders
    w0 = work.initial(0)
    fitted = work.fit(w0[None], clients, purpose="pretrain", budget=algorithm.pretrain)
    updates = (fitted.collect() - w0)[:, : work.layout.num_parameters]
    exact, decomposed = madc(cosine_similarity(updates)), edc(updates, algorithm.num_clusters)
    for i, j in torch.combinations(torch.arange(len(clients))).tolist():
        pair = {"client": int(clients[i]), "other": int(clients[j])}
        values = {"madc": f"{exact[i, j]:.3g}", "edc": f"{decomposed[i, j]:.3g}"}
        yield {"data": data, "seed": seed} | pair | values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/reproduction/edc_madc.csv"))
    parser.add_argument("--data", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    options = parser.parse_args()
    table = CsvLog(options.out, COLUMNS)
    rows = [row for data in options.data for row in measure_pairs(data)]
    table.start()
    table.append(rows)
    print(f"{len(rows)} pairs: {options.out}")


if __name__ == "__main__":
    main()
