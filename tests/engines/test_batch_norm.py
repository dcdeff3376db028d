"""BatchNorm in a stack: every client has its own statistics, as with a Trainer of its own."""

from functools import partial

import pytest
import torch
from ragged import fitted, ragged_data, rows_of, task
from torch import Tensor, nn
from torch.nn.functional import relu
from torch.testing import assert_close

from lit_cfl.engines.factory import workload
from lit_cfl.engines.local_training import LocalTraining
from lit_cfl.engines.plan import Plan

LOCAL = LocalTraining(2, 4)
SIZES = (0, 3, 18, 22, 7, 10)  # batches of 2, 3 and 4: with one example a channel of one place has no variance


class Residual(nn.Module):
    """A block of ResNet-18 (He et al., 2016), between a convolution and a head."""

    def __init__(self, **options: bool | float) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4, **options)
        self.conv2, self.bn2 = nn.Conv2d(4, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6, **options)
        self.conv3, self.bn3 = nn.Conv2d(6, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6, **options)
        self.short, self.bn4 = nn.Conv2d(4, 6, 1, 2, bias=False), nn.BatchNorm2d(6, **options)
        self.fc1, self.bn5, self.fc2 = nn.Linear(6, 5), nn.BatchNorm1d(5, **options), nn.Linear(5, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(inputs)))
        x = relu(self.bn3(self.conv3(relu(self.bn2(self.conv2(x))))) + self.bn4(self.short(x)))
        return self.fc2(relu(self.bn5(self.fc1(x.mean((2, 3))))))


@pytest.mark.parametrize("options", [{}, {"affine": False, "momentum": 0.3}, {"track_running_stats": False}])
@pytest.mark.parametrize("lanes", [1, 4])
def test_batch_norm_in_a_stack_gives_the_trainers_result(options: dict[str, float], lanes: int):
    data, make = ragged_data(SIZES), task(partial(Residual, **options), partial(torch.optim.Adam, lr=0.01))
    assert workload(make, 0, LOCAL, data, "32-true", client_fits=1).obstacles == []
    rows, losses, gradients = [], [], []
    for plan in (Plan("trainer", precision="64-true"), Plan("stacked", lanes=lanes, precision="64-true")):
        found, engine = fitted(make, plan, local=LOCAL, data=data, prox=0.1)
        rows.append(rows_of(found))
        losses.append(found.losses)
        gradients.append(engine.at(0, data).gradients(engine.initial(0), torch.arange(1, 6)))
    assert_close(rows[1], rows[0], rtol=0, atol=1e-10)
    assert_close(losses[1], losses[0], rtol=1e-10, atol=0, equal_nan=True)
    assert_close(gradients[1], gradients[0], rtol=0, atol=1e-12)
    statistics = rows[0][:, engine.layout.num_parameters :]
    assert bool((statistics[1] - statistics[2]).norm() > 1e-3) == ("track_running_stats" not in options)
