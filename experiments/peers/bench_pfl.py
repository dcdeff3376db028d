"""FedAvg with pfl-research (PyPI: pfl 0.6.0) on numpy arrays and a user-given torch model.

Own virtual environment, Python 3.11 (pfl needs >=3.10,<3.13):
    pip install "pfl[pytorch]==0.6.0" numpy        # numpy<3, dp-accounting<0.6, packaging<26
Run:
    python bench_pfl.py --preset smoke
    python bench_pfl.py --preset pfl-cifar10 --rounds 200 --device cuda:0 --out pfl.json
    torchrun --standalone --nproc_per_node=2 bench_pfl.py --preset smoke --threads 1
    torchrun --standalone --nproc_per_node=4 bench_pfl.py ... --device cuda:0 --share-gpu

Notes from reading pfl 0.6.0 (not from running it):
* iteration 0 always evaluates each sampled user before and after training
  (algorithm/base.py: do_evaluation = iteration % evaluation_frequency == 0), so
  keep --warmup >= 1; evaluation_frequency is set above the number of rounds here.
* users are sampled with replacement ('random'); local batches are cached and never
  shuffled (data/dataset.py: Dataset.iter).
* under torchrun with CUDA, 0.6.0 calls torch.cuda.set_device(LOCAL_RANK) and uses NCCL
  (internal/ops/pytorch_ops.py), so more processes than GPUs - the "p processes per GPU" of
  the paper and of the docs - fails; --share-gpu below maps every rank to GPU 0 and uses gloo.
* statistics stay on the device and are all-reduced once per round.
"""

import os
import random

import bench_common as bc
import numpy as np


def main() -> None:
    p = bc.parser(__doc__.splitlines()[0])
    p.add_argument("--sampler", default="random", choices=["random", "minimize_reuse"])
    p.add_argument("--share-gpu", action="store_true", help="several torchrun ranks on one GPU, gloo all-reduce")
    args = bc.parse(p)

    # Both must be set before pfl is imported: pfl opens its process group on import.
    os.environ["PFL_PYTORCH_DEVICE"] = args.device
    import torch

    if args.share_gpu:
        real_set, real_init = torch.cuda.set_device, torch.distributed.init_process_group
        torch.cuda.set_device = lambda device: real_set(0)

        def init_gloo(*a, **kw):
            kw["backend"] = "gloo"
            return real_init(*a[1:], **kw)

        torch.distributed.init_process_group = init_gloo

    from importlib.metadata import version

    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset, get_user_sampler
    from pfl.data.dataset import Dataset
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    bc.set_threads(args.threads)
    random.seed(args.seed)
    np.random.seed(args.seed)  # pfl draws users from numpy's global state
    clock = bc.Clock(args)
    data = bc.make_data(args)
    device = pytorch_ops.get_default_device()

    class Wrapped(torch.nn.Module):
        """Module with the methods loss() and metrics() that pfl requires."""

        def __init__(self, net):
            super().__init__()
            self.net = net
            self.criterion = torch.nn.CrossEntropyLoss()
            self.criterion_sum = torch.nn.CrossEntropyLoss(reduction="sum")

        def forward(self, x):
            return self.net(x)

        def loss(self, x, y, eval=False):
            self.eval() if eval else self.train()
            return self.criterion(self(x), y)

        @torch.no_grad()
        def metrics(self, x, y, eval=True):
            self.eval() if eval else self.train()
            return {"loss": Weighted(self.criterion_sum(self(x), y).item(), len(y))}

    torch.manual_seed(args.seed)
    net = Wrapped(bc.make_model(args))
    # PyTorchModel moves the module to the device in place, so the optimiser may be made first.
    model = PyTorchModel(
        model=net, local_optimizer_create=torch.optim.SGD, central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0)
    )

    # Torch tensors, already on the device: pfl's to_tensor() would turn numpy labels into
    # float32 and copy every batch. This is what the project's own CIFAR10 benchmark does.
    users = {
        i: [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in data.client(i)] for i in range(data.clients)
    }
    sampler = get_user_sampler(args.sampler, list(range(data.clients)))
    # One Dataset object per user, kept between rounds, so that its batch cache works
    # (FederatedDataset.from_slices would build a new one every time a user is sampled).
    datasets = {i: Dataset(v, user_id=str(i)) for i, v in users.items()}
    train = FederatedDataset(lambda i: datasets[i], sampler, {i: len(d) for i, d in datasets.items()})

    evaluator = bc.Evaluator(data, device)

    class Timing(TrainingProcessCallback):
        def on_train_begin(self, *, model):
            clock.accuracy[0] = evaluator(model.pytorch_model)
            clock.resume()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            clock.lap()
            done = central_iteration + 1
            if clock.due(done):
                clock.accuracy[done] = evaluator(model.pytorch_model)
            clock.resume()
            return False, Metrics()

    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=args.rounds,
            evaluation_frequency=args.rounds + 1,
            train_cohort_size=args.per_round,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=train, val_data=train, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=args.epochs, local_learning_rate=args.lr, local_batch_size=args.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=10000),
        callbacks=[Timing()],
        send_metrics_to_platform=False,
    )  # keeps pfl from printing every round

    if pytorch_ops.distributed.global_rank == 0:
        bc.report("pfl", version("pfl"), args, clock, net.net, {"processes": pytorch_ops.distributed.world_size})


if __name__ == "__main__":
    main()
