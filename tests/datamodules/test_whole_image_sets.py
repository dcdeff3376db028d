"""The whole image sets, where there are copies; from the cache that other tests have filled, as decoding takes long."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hub import SHARED
from one_round import round_of_fedavg

from lit_cfl.datamodules.image_sets import CIFAR10, MNIST, FashionMNIST, ImageSet


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make", "train", "mean"),
    [
        ("mnist", MNIST, 60000, [0.1307]),
        ("fashion_mnist", FashionMNIST, 60000, [0.2860]),
        ("cifar10", CIFAR10, 50000, [0.4914, 0.4822, 0.4465]),
    ],
)
def test_whole_real_sets_have_the_known_pixels(
    name: str, make: Callable[..., ImageSet], train: int, mean: list[float], tmp_path: Path
):
    """Means of the training part as everyone normalises with; equally many images of each label but in MNIST."""
    if not (SHARED / name).exists():
        pytest.skip(f"{SHARED / name} holds no copy of this data set")
    data = make(str(SHARED / name))
    pool = data.pool()
    assert (pool.num_train, len(pool.examples)) == (train, train + 10000)
    means = pool.examples.inputs[:train].double().mean((0, 2, 3)) / 255
    assert means.tolist() == pytest.approx(mean, abs=5e-5)
    if name != "mnist":
        assert pool.labels.bincount().tolist() == [(train + 10000) // 10] * 10
    round_of_fedavg(data, tmp_path / "run")
