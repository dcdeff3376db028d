"""FedAvg with Flower (PyPI: flwr 1.42.0) on numpy arrays and a user-given torch model.

Own virtual environment, Python 3.11 (the simulation extra pins ray==2.55.1, so it cannot
share one with a newer Ray; it also wants cryptography>=50, packaging<26, rich<15, typer<0.21):
    pip install "flwr[simulation]==1.42.0" torch numpy
Run:
    python bench_flower.py --preset smoke --num-cpus 2
    python bench_flower.py --preset pfl-cifar10 --rounds 100 --device cuda:0 \
        --num-cpus 10 --gpus-per-client 0.1 --out flower.json

Notes from reading flwr 1.42.0 (not from running it):
* run_simulation() still works but is marked deprecated in favour of `flwr run`; it returns
  None, so results are collected through evaluate_fn, which runs in a thread of this process.
* client functions must live in an importable module, never in __main__: cloudpickle would send
  them by value with every message and the caches below would be lost; hence the last lines.
* every message carries the whole model through Ray's object store, once per client and back.
* fixed costs: vce_api.add_messages_to_queue sweeps all nodes, then waits 0.1 s;
  InMemoryGrid.pull_interval is 0.1 s; at most min(32, cpus + 4) clients run at once,
  because of ThreadPoolExecutor()'s default. --tune removes the two 0.1 s waits, as a
  best case for Flower; report both.
* node ids are random and get_node_ids() comes from a set: the same seed does not give the
  same clients per round.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "1")

import math
import random
import shutil
import tempfile

import bench_common as bc
import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app = ClientApp()
_CACHE: dict = {}  # each Ray actor has its own copy


class _Args:  # holds the few fields that make_model() needs; made again in each actor
    pass


def _actor_state(cfg):
    key = str(cfg["data_dir"])
    if key not in _CACHE:
        bc.set_threads(int(cfg["threads"]))
        a = _Args()
        a.model, a.shape = str(cfg["model"]), str(cfg["shape"])
        a.classes, a.seed = int(cfg["classes"]), int(cfg["seed"])
        device = torch.device("cuda:0" if cfg["cuda"] else "cpu")
        x = np.load(os.path.join(key, "x.npy"), mmap_mode="r")
        y = np.load(os.path.join(key, "y.npy"), mmap_mode="r")
        offsets = np.load(os.path.join(key, "offsets.npy"))
        _CACHE[key] = (bc.make_model(a).to(device), x, y, offsets, device, {})
    return _CACHE[key]


@client_app.train()
def train(msg: Message, context: Context) -> Message:
    cfg = msg.content["config"]
    model, x, y, offsets, device, tensors = _actor_state(cfg)
    pid = int(context.node_config["partition-id"])
    if pid not in tensors:
        a, b = int(offsets[pid]), int(offsets[pid + 1])
        tensors[pid] = (torch.from_numpy(np.array(x[a:b])).to(device), torch.from_numpy(np.array(y[a:b])).to(device))
    xs, ys = tensors[pid]
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=float(cfg["lr"]))
    criterion = torch.nn.CrossEntropyLoss()
    batch, last = int(cfg["batch"]), 0.0
    for _ in range(int(cfg["epochs"])):
        for i in range(0, len(ys), batch):
            optimiser.zero_grad()
            loss = criterion(model(xs[i : i + batch]), ys[i : i + batch])
            loss.backward()
            optimiser.step()
    last = float(loss)
    return Message(
        content=RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"train_loss": last, "num-examples": len(ys)}),
            }
        ),
        reply_to=msg,
    )


def main() -> None:
    from importlib.metadata import version

    p = bc.parser(__doc__.splitlines()[0])
    p.add_argument("--num-cpus", type=int, default=os.cpu_count() or 1, help="CPUs Ray may use")
    p.add_argument("--cpus-per-client", type=float, default=1)
    p.add_argument(
        "--gpus-per-client", type=float, default=0.0, help="default with a GPU: 1 / min(num-cpus, per-round)"
    )
    p.add_argument("--num-gpus", type=int, default=1)
    p.add_argument("--tune", action="store_true", help="shorten Flower's polling intervals")
    args = bc.parse(p)
    cuda = args.device.startswith("cuda")
    if cuda and not args.gpus_per_client:
        share = args.num_gpus / max(1, min(args.num_cpus, args.per_round))
        args.gpus_per_client = math.floor(share * 1e4) / 1e4  # Ray keeps four decimals

    if args.tune:  # monkey patches for the best-case figure only
        from flwr.server.superlink.fleet.vce import vce_api
        from flwr.superlink.grid import inmemory_grid

        def add_messages_fast(state, queue, nodes_mapping, f_stop):
            while not f_stop.is_set():
                for node_id in nodes_mapping:
                    for message in state.get_message_ins(node_id=node_id, limit=1):
                        queue.put(message)
                f_stop.wait(0.002)

        vce_api.add_messages_to_queue = add_messages_fast
        original = inmemory_grid.InMemoryGrid.__init__

        def init(self, *a, **kw):
            original(self, *a, **kw)
            self.pull_interval = 0.005

        inmemory_grid.InMemoryGrid.__init__ = init

    random.seed(args.seed)
    np.random.seed(args.seed)
    clock = bc.Clock(args)
    data = bc.make_data(args)
    folder = tempfile.mkdtemp(prefix="bench_flower_")
    np.save(os.path.join(folder, "x.npy"), data.x)
    np.save(os.path.join(folder, "y.npy"), data.y)
    np.save(os.path.join(folder, "offsets.npy"), data.offsets)
    net = bc.make_model(args).to(args.device)
    initial = ArrayRecord({k: v.cpu() for k, v in net.state_dict().items()})
    evaluator = bc.Evaluator(data, args.device)
    failures: list[int] = []

    class CountingFedAvg(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            failures.append(sum(r.has_error() for r in replies) + args.per_round - len(replies))
            return super().aggregate_train(server_round, replies)

    def evaluate_fn(rnd: int, arrays: ArrayRecord):
        """Evaluates the model on central test data before round 1 (rnd 0), and after each round that is due."""
        if rnd:
            clock.lap()
        if rnd == 0 or clock.due(rnd):
            net.load_state_dict(arrays.to_torch_state_dict())
            clock.accuracy[rnd] = evaluator(net)
        clock.resume()
        return

    server_app = ServerApp()

    @server_app.main()
    def server(grid: Grid, context: Context) -> None:
        CountingFedAvg(
            fraction_train=args.per_round / args.clients,
            fraction_evaluate=0.0,
            min_train_nodes=args.per_round,
            min_available_nodes=args.clients,
        ).start(
            grid=grid,
            initial_arrays=initial,
            num_rounds=args.rounds,
            evaluate_fn=evaluate_fn,
            train_config=ConfigRecord(
                {
                    "data_dir": folder,
                    "model": args.model,
                    "shape": str(args.shape),
                    "classes": args.classes,
                    "seed": args.seed,
                    "threads": args.threads or 1,
                    "lr": args.lr,
                    "batch": args.batch,
                    "epochs": args.epochs,
                    "cuda": cuda,
                }
            ),
        )

    init_args = {"num_cpus": args.num_cpus, "include_dashboard": False}
    if cuda:
        init_args["num_gpus"] = args.num_gpus
    try:
        run_simulation(
            server_app=server_app,
            client_app=client_app,
            num_supernodes=args.clients,
            backend_config={
                "client_resources": {"num_cpus": args.cpus_per_client, "num_gpus": args.gpus_per_client},
                "init_args": init_args,
            },
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    if any(failures):
        print(f"WARNING: {sum(failures)} client runs failed; the speed figures are not valid")
    bc.report(
        "flower",
        version("flwr"),
        args,
        clock,
        net,
        {"ray": version("ray"), "failed_clients": sum(failures), "tuned": args.tune},
    )


if __name__ == "__main__":
    # Runs the importable copy of this module, so that Ray actors can import it by name.
    import bench_flower as me

    me.main()
