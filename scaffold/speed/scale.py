"""Measures time and memory of a round for growing cohorts and for growing populations.

    python scaffold/speed/scale.py [--cohorts 10 30 100 300 1000 3000 4800] [--populations 1000 10000 100000 1000000]
                               [--rows_mib 1024] [--out FILE.json] [--picture docs/scale.png]

A round is `fit` and `mean_by_cluster`: only the means are kept, and local models are held `--rows_mib` at a time. Every
row is a fresh process with one thread; peak is the process's maximum memory, imports included.

* cohort: n clients, each with 10 images of 28 x 28, one step of an MLP of 1,628,170 parameters; 10 clusters.
* population: 100 of n synthetic clients, one epoch of a linear model; the median of five rounds after a first.
  Selecting the cohort counts; making the clients has its own column.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from data import SMALL_CLIENTS, measure
from tables import print_rows, run_in_process

from lit_cfl.metric_names import Row

COHORTS, POPULATIONS = [10, 30, 100, 300, 1000, 3000, 4800], [1_000, 10_000, 100_000, 1_000_000]
COLUMNS = ("what", "clients", "round s", "ms a client", "made s", "peak MiB", "above imports MiB", "all models MiB")
BATCH, CLUSTERS, SELECTED = 10, 10, 100


def measure_cohort(clients: int, rows_mib: int) -> Row:
    import torch

    from lit_cfl.aggregation import mean_by_cluster
    from lit_cfl.data import ClientIndex, Examples, FederatedData
    from lit_cfl.engines.engine import Engine
    from lit_cfl.engines.mini_batches import LocalTraining
    from lit_cfl.engines.plan import Plan
    from lit_cfl.local_work import Budget
    from lit_cfl.nets import MLP
    from lit_cfl.tasks import Classification

    torch.set_num_threads(1)

    def work() -> Row:
        begun = perf_counter()
        rng, total = torch.Generator().manual_seed(0), clients * BATCH
        images = torch.randint(0, 255, (total, 1, 28, 28), generator=rng, dtype=torch.uint8)
        examples = Examples(images, torch.randint(0, 10, (total,), generator=rng), 10, 1 / 255)
        train = ClientIndex.from_sizes(torch.arange(total), torch.full((clients,), BATCH))
        none = ClientIndex.empty(clients)
        data = FederatedData(examples, train, none, none, torch.zeros(clients, dtype=torch.int64))
        plan = Plan("loop", rows_mib=rows_mib)
        engine = Engine(lambda: Classification(MLP(2048, [1, 28, 28], 10)), plan, 0, LocalTraining(1, BATCH))
        models, everyone = engine.initial(0).repeat(CLUSTERS, 1), torch.arange(clients)
        step = Budget(1, "steps")
        engine.at(0, data).fit(models, everyone[:1], budget=step)  # warm-up, for one-time costs
        made = perf_counter()
        fitted = engine.at(1, data).fit(models, everyone, everyone % CLUSTERS, budget=step)
        means = mean_by_cluster(fitted, everyone % CLUSTERS, data.num_examples, into=models)
        seconds = perf_counter() - made
        if fitted.skipped or torch.equal(means, models):
            raise RuntimeError("no client has trained")
        return {
            "clients": clients,
            "round s": seconds,
            "made s": made - begun,
            "all models MiB": clients * engine.layout.num_columns * 4 / 2**20,
        }

    return measure(work)


def measure_population(clients: int, rows_mib: int) -> Row:
    import torch

    from lit_cfl.aggregation import mean_by_cluster
    from lit_cfl.datamodules import Synthetic
    from lit_cfl.engines.engine import Engine
    from lit_cfl.engines.mini_batches import LocalTraining
    from lit_cfl.engines.plan import Plan
    from lit_cfl.nets import MCLR
    from lit_cfl.rounds import Cohorts
    from lit_cfl.tasks import Classification

    torch.set_num_threads(1)

    def work() -> Row:
        begun = perf_counter()
        data = Synthetic(num_clients=clients, **SMALL_CLIENTS).federated(0)
        plan = Plan("loop", rows_mib=rows_mib)
        engine = Engine(lambda: Classification(MCLR([20], 10)), plan, 0, LocalTraining(1, BATCH))
        model, times = engine.initial(0)[None], []
        made = perf_counter()
        for number in range(6):
            start = perf_counter()
            chosen = Cohorts(SELECTED).at(number, data.population, 0)
            fitted = engine.at(number, data).fit(model, chosen)
            model = mean_by_cluster(fitted, torch.zeros_like(chosen), data.num_examples[chosen], into=model)
            times.append(perf_counter() - start)
        return {"clients": clients, "round s": median(times[1:]), "made s": made - begun}

    return measure(work)


CASES: dict[str, Callable[[int, int], Row]] = {"cohort": measure_cohort, "population": measure_population}


def measure_all(cohorts: list[int], populations: list[int], rows_mib: int) -> Iterator[Row]:
    for case, numbers in (("cohort", cohorts), ("population", populations)):
        for number in numbers:
            row = run_in_process(__file__, ["--case", case, str(number), "--rows_mib", str(rows_mib)])
            trained = number if case == "cohort" else min(SELECTED, number)
            yield {"what": case, "ms a client": 1000 * float(row["round s"]) / trained} | row


def draw(found: list[Row], target: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # must follow the choice of the backend

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(2, 2, figsize=(9, 5), sharex="col", layout="constrained")
    titles = {"cohort": "clients in a round, MLP of 1.63 M", "population": f"population, {SELECTED} clients in a round"}
    for column, (case, title) in enumerate(titles.items()):
        mine = [row for row in found if row["what"] == case]
        clients = [row["clients"] for row in mine]
        time, memory = axes[:, column]
        time.plot(clients, [row["round s"] for row in mine], "o-", color="tab:blue")
        memory.plot(clients, [float(row["peak MiB"]) / 1024 for row in mine], "o-", color="tab:blue", label="peak")
        if case == "cohort":
            held = [float(row["all models MiB"]) / 1024 for row in mine]
            memory.plot(clients, held, ":", color="tab:gray", label="all local models at once")
            memory.legend(frameon=False, fontsize=8)
        many = case == "cohort"  # a logarithmic axis only for cohorts: the range of the other case is too small
        time.set(xscale="log", yscale="log" if many else "linear", title=title)
        memory.set(xscale="log", yscale="log" if many else "linear", xlabel="clients")
        if not many:
            time.set_ylim(0, 1.2 * max(row["round s"] for row in mine))
            memory.set_ylim(0, 1.2 * max(float(row["peak MiB"]) for row in mine) / 1024)
    axes[0, 0].set_ylabel("seconds per round")
    axes[1, 0].set_ylabel("GiB of memory")
    figure.savefig(target, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohorts", type=int, nargs="*", default=COHORTS)
    parser.add_argument("--populations", type=int, nargs="*", default=POPULATIONS)
    parser.add_argument("--rows_mib", type=int, default=1024)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(CASES[options.case[0]](int(options.case[1]), options.rows_mib)))
        return
    found = print_rows(COLUMNS, measure_all(options.cohorts, options.populations, options.rows_mib), options.out)
    if options.picture:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
