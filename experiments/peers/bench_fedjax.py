"""FedAvg with FedJAX (PyPI: fedjax 0.0.17) on the arrays of bench_common.py.

Own virtual environment, Python 3.11:
    pip install jax==0.10.2 dm-haiku optax absl-py msgpack requests scipy numpy && pip install --no-deps fedjax==0.0.17
Run:
    python bench_fedjax.py --preset flexcfl-mnist --model mlp --rounds 8 --eval-every 0

FedJAX 0.0.17 still calls jax.tree_map and related functions, which JAX removed: they are restored below. JAX uses all
cores. The haiku models have the same layers and sizes as those of bench_common.py; initial weights differ, speed does
not.
"""

import resource
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

jax.tree_map = jax.tree_util.tree_map
jax.tree_multimap = jax.tree_util.tree_map
jax.tree_leaves = jax.tree_util.tree_leaves

import bench_common as bc  # noqa: E402
import fedjax  # noqa: E402  # these imports need the functions restored above
import haiku as hk  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402


def build(name: str, classes: int, shape: tuple[int, ...]):
    def forward(batch):
        x = batch["x"]
        if name == "mclr":
            return hk.Linear(classes)(x.reshape(len(x), -1))
        if name == "mlp":
            return hk.nets.MLP([128, classes])(x.reshape(len(x), -1))
        if name != "conv5":
            raise SystemExit(f"unknown model {name!r}")
        x = jnp.moveaxis(x, 1, -1)
        for channels in (32, 64):
            x = hk.MaxPool(2, 2, "SAME")(jax.nn.relu(hk.Conv2D(channels, 5)(x)))
        return hk.Linear(classes)(jax.nn.relu(hk.Linear(512)(x.reshape(len(x), -1))))

    sample = {"x": np.zeros((1, *shape), np.float32), "y": np.zeros((1,), np.int32)}
    return fedjax.create_model_from_haiku(
        hk.transform(forward),
        sample,
        lambda batch, preds: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], preds),
    )


def main() -> None:
    args = bc.parse(bc.parser(__doc__.splitlines()[0]))
    data = bc.make_data(args)
    shape = data.x.shape[1:]
    model = build(args.model, args.classes, shape)
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(args.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=args.batch, num_epochs=args.epochs),
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(args.seed)))
    rng = np.random.default_rng(args.seed)
    seconds = []
    for t in range(args.rounds):
        cohort = rng.choice(data.clients, args.per_round, replace=False)
        clients = []
        for i in cohort:
            x, y = data.client(int(i))
            clients.append(
                (
                    str(i).encode(),
                    fedjax.ClientDataset({"x": x, "y": y.astype(np.int32)}),
                    jax.random.PRNGKey(t * 100_003 + int(i)),
                )
            )
        start = time.perf_counter()
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        seconds.append(time.perf_counter() - start)
    kept = seconds[args.warmup :] or seconds
    steps = args.per_round * args.epochs * -(-args.samples // args.batch)
    count = sum(v.size for v in jax.tree_util.tree_leaves(state.params))
    print(
        f"fedjax {args.model}: {count} parameters, median {statistics.median(kept):.4f} s per round, "
        f"{statistics.median(kept) / steps * 1e3:.4f} ms per client-step, "
        f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB"
    )


if __name__ == "__main__":
    main()
