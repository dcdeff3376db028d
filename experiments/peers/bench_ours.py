"""FedAvg with Lit-CFL on the arrays and the torch model of bench_common.py.

    python bench_ours.py --preset flexcfl-mnist --model mlp --clients 100 --rounds 30 --eval-every 0 [--threads 2]

A round is everything that the round loop does: sampling the cohort, mini-batches, training, the weighted mean and the
server step. The plan is chosen by the rule, except for `--threads` and `--workers` if given.
"""

import argparse
from functools import partial
from importlib.metadata import version

import bench_common as bc
import numpy as np
import torch

from lit_cfl.algorithms import FedAvg
from lit_cfl.datamodules import ArrayData
from lit_cfl.experiment import Experiment, LocalTraining, PlanOptions
from lit_cfl.parameters import ParameterLayout
from lit_cfl.tasks import Classification


def build_experiment(args: argparse.Namespace, data: bc.ClientData) -> Experiment:
    return Experiment(
        ArrayData(data.x, data.y, np.repeat(np.arange(data.clients), np.diff(data.offsets)), test=0.0),
        lambda: Classification(bc.make_model(args), partial(torch.optim.SGD, lr=args.lr)),
        FedAvg(),
        rounds=args.rounds,
        cohort_size=args.per_round,
        local=LocalTraining(args.epochs, args.batch),
        device="cuda" if args.device.startswith("cuda") else "cpu",
        plan=PlanOptions(threads=args.threads or None, workers=args.workers or None),
    )


def main() -> None:
    parser = bc.parser(__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=0, help="Ray worker processes (0: chosen by the rule)")
    args = bc.parse(parser)
    clock, data, net = bc.Clock(args), bc.make_data(args), bc.make_model(args).to(args.device)
    evaluator = bc.Evaluator(data, args.device)
    prepared = build_experiment(args, data).prepare(args.seed)
    layout = ParameterLayout.of(net)
    rounds = prepared.rounds()
    clock.resume()
    for r in rounds:
        clock.lap()
        if clock.due(r.number):
            served = prepared.experiment.algorithm.serve(r.state, r.data.population)
            layout.write(served.models[0], net)
            clock.accuracy[r.number] = evaluator(net)
        clock.resume()
    bc.report("lit-cfl", version("lit-cfl"), args, clock, net, {"plan": str(prepared.engine.plan)})


if __name__ == "__main__":
    main()
