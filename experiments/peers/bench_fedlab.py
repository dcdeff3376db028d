"""FedAvg with FedLab (PyPI: fedlab 1.3.0) on numpy arrays and a user-given torch model.

Own virtual environment, Python 3.11 (1.3.0 is an sdist; its pins are only lower bounds):
    pip install "fedlab==1.3.0" torch torchvision "numpy<3" pandas scikit-learn pynvml
Run:
    python bench_fedlab.py --preset smoke
    python bench_fedlab.py --preset pfl-cifar10 --rounds 200 --device cuda:0 --out fedlab.json
    python bench_fedlab.py ... --loader fast      # slices of resident tensors, best case

Notes from reading fedlab 1.3.0 (not from running it):
* one process, clients one after another; every upload is a flat vector moved to the CPU
  (SerializationTool.serialize_model), deep-copied twice (uplink_package, load), then stacked.
* the mean is not weighted by samples; buffers (BatchNorm) are not aggregated.
* num_clients_per_round = int(sample_ratio * n), hence the +0.5 below.
* get_best_gpu() needs pynvml unless a device is named, so one is named.
"""

import random

import bench_common as bc
import numpy as np
import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset
from fedlab.core.standalone import StandalonePipeline


class ArrayFedDataset(FedDataset):
    """FedLab's data set interface for the clients' arrays, read through get_dataloader(id, batch_size)."""

    def __init__(self, data: bc.ClientData, device: str, fast: bool):
        super().__init__()
        self.num = data.clients
        self.fast = fast
        where = device if fast else "cpu"
        self.sets = []
        for i in range(data.clients):
            x, y = data.client(i)
            self.sets.append(
                (
                    torch.from_numpy(np.ascontiguousarray(x)).to(where),
                    torch.from_numpy(np.ascontiguousarray(y)).to(where),
                )
            )

    def get_dataset(self, id, type="train"):
        return BaseDataset(*self.sets[id])

    def get_dataloader(self, id, batch_size, type="train"):
        x, y = self.sets[id]
        if self.fast:
            # a list, not a generator: FedLab iterates over it once per epoch
            return [(x[i : i + batch_size], y[i : i + batch_size]) for i in range(0, len(y), batch_size)]
        return torch.utils.data.DataLoader(BaseDataset(x, y), batch_size=batch_size, shuffle=True)


class TimedPipeline(StandalonePipeline):
    """Standalone pipeline that times rounds in evaluate(), which main() calls once after every round."""

    def __init__(self, handler, trainer, clock, evaluator):
        super().__init__(handler, trainer)
        self.clock, self.evaluator = clock, evaluator

    def evaluate(self):
        self.clock.lap()
        done = self.handler.round
        if self.clock.due(done):
            self.clock.accuracy[done] = self.evaluator(self.handler.model)
        self.clock.resume()


def main() -> None:
    from importlib.metadata import version

    p = bc.parser(__doc__.splitlines()[0])
    p.add_argument("--loader", choices=["torch", "fast"], default="torch")
    args = bc.parse(p)
    cuda = args.device.startswith("cuda")

    bc.set_threads(args.threads)
    random.seed(args.seed)  # FedLab samples clients with random.sample
    np.random.seed(args.seed)
    clock = bc.Clock(args)
    data = bc.make_data(args)
    net = bc.make_model(args)
    ratio = 1.0 if args.per_round == args.clients else (args.per_round + 0.5) / args.clients
    handler = SyncServerHandler(
        model=net, global_round=args.rounds, sample_ratio=ratio, cuda=cuda, device=args.device if cuda else None
    )
    trainer = SGDSerialClientTrainer(
        model=net, num_clients=args.clients, cuda=cuda, device=args.device if cuda else None
    )
    trainer.setup_dataset(ArrayFedDataset(data, args.device, args.loader == "fast"))
    trainer.setup_optim(epochs=args.epochs, batch_size=args.batch, lr=args.lr)
    evaluator = bc.Evaluator(data, args.device)
    pipeline = TimedPipeline(handler, trainer, clock, evaluator)
    assert handler.num_clients_per_round == args.per_round
    clock.accuracy[0] = evaluator(handler.model)
    clock.resume()
    pipeline.main()
    bc.report("fedlab", version("fedlab"), args, clock, handler.model, {"loader": args.loader})


if __name__ == "__main__":
    main()
