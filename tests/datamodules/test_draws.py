"""Tests that partitions and shifts draw what they always drew, since recorded results depend on their draws."""

from hashlib import sha256

import torch
from partition_cases import divided, labels_of, pool_of

from lit_cfl.config.catalogue import classes
from lit_cfl.data.shift import apply_shifts
from lit_cfl.datamodules import ClassesPerClient, Digits

POOL = pool_of(labels_of([6000] * 10), labels_of([1000] * 10, 1), torch.arange(70_000) % 70)
DRAWN = """
ClassesPerClient b2ad1716, Dirichlet b1a2fc7c, DirichletSizes 9a38f698, Ditto500 f8f84f8b
DominantClass 21eed4f3, FedProxFEMNIST d9f807d1, IID 390f04b1, InnerDirichlet 4e60df9f
LabelGroups 1910e77f, LogNormalSizes 48e7bbeb, MNIST1000 1778c282, Natural 2671a187
PowerLawSizes bab37fd8, Shards a1af12d1, Incremental 5121f690, LabelDrift a5440f52
SwapAll 42c8996f, SwapPart 60db507a
"""  # digests of the entries, sizes and true clusters under the seed 5


def test_default_partitions_and_the_first_change_of_each_shift_are_those_recorded():
    found = {name: divided(kind(), POOL, 5) for name, kind in classes("partitions").items()}
    for name, kind in classes("shifts").items():
        data = Digits(partition=ClassesPerClient(8, 0.25, classes=3), shift=kind()).federated(5)
        rounds = (apply_shifts(data, [kind()], number, 5, data.population) for number in range(200))
        found[name] = next(after for after, moves in rounds if moves)
    for name, data in found.items():
        parts = [data.train.entries, data.train.sizes, data.test.entries, data.test.sizes, data.true_clusters]
        found[name] = sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:8]
    assert found == dict(pair.split() for pair in DRAWN.strip().replace("\n", ", ").split(", "))
