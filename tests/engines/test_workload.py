"""Tests how the operations of a net are counted, and how the workload of a run uses the counts."""

import pytest
import torch
from ragged import ragged_data
from torch import nn

from lit_cfl.data import Examples
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.workload import count_multiply_adds, measure_workload
from lit_cfl.nets import MCLR, MLP
from lit_cfl.tasks import Classification

IMAGES = Examples(torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64), 4)
SEQUENCES = Examples(torch.zeros(2, 5, 3), torch.zeros(2, dtype=torch.int64), 4)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.LSTM(3, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(x)[0][:, -1])


class _ByNumbers(nn.Module):
    """Net whose operations depend on the values of its inputs, not on shapes alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net = MCLR([1, 8, 8], 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) if float(x.sum()) > 0 else self.net(-x)


@pytest.mark.parametrize(
    ("net", "examples", "expected"),
    [
        (MCLR([1, 8, 8], 4), IMAGES, 64 * 4),
        (MLP(16, [1, 8, 8], 4), IMAGES, 64 * 16 + 16 * 4),
        (nn.Sequential(nn.Conv2d(1, 6, 3), nn.Flatten(), nn.Linear(6 * 36, 4)), IMAGES, 9 * 6 * 36 + 6 * 36 * 4),
        (_Recurrent(), SEQUENCES, 5 * 4 * 6 * (3 + 6) + 6 * 4),
        (_ByNumbers(), IMAGES, 0),
        (nn.Linear(3, 4), IMAGES, 0),  # the net cannot take these inputs
    ],
)
def test_multiply_adds_of_an_example_are_counted(net: nn.Module, examples: Examples, expected: int):
    before = [parameter.clone() for parameter in net.parameters()]
    batch = examples.batch(torch.arange(2))
    assert count_multiply_adds(Classification(net), batch) == expected
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_workload_counts_mini_batches_and_rounds():
    data = ragged_data()
    sizes = data.num_examples[data.population].double()
    shape = list(data.examples.input_shape)
    net = MCLR(shape, data.examples.num_labels)
    load = measure_workload(lambda: Classification(net), 0, LocalTraining(1, 3), data, rounds=3, cohort=20)
    one = torch.Size(shape).numel() * data.examples.num_labels
    assert (load.rounds, load.cohort, load.multiply_adds) == (3, len(sizes), load.client_steps * 3 * one)
    assert load.client_steps == pytest.approx(60 * float((sizes / 3).ceil().mean()), abs=1)
    mean = round(float(sizes.mean()))
    assert load.task is not None
    assert [load.task.batch_size(LocalTraining(1, size)) for size in ("full", 10**6)] == [mean, mean]
