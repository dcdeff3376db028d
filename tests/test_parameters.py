import re
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn

from lit_cfl.errors import InputError
from lit_cfl.parameters import ParameterLayout


class SmallNet(nn.Module):
    """Net with 21 trainable parameters, followed by 4 values in floating-point buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 1)  # columns 0:4
        self.norm = nn.BatchNorm2d(2)  # columns 4:8, and 21:25 for the running statistics
        self.fc1 = nn.Linear(2, 3)  # columns 8:17
        self.fc2 = nn.Linear(3, 1)  # columns 17:21


class OneVector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("cache", torch.zeros(5), persistent=False)


def nested() -> nn.Module:
    """Makes a module with fc1 (8 columns) and fc2 (3 columns) inside `net`."""
    net = nn.ModuleDict({"fc1": nn.Linear(3, 2), "fc2": nn.Linear(2, 1)})
    return nn.ModuleDict({"net": net})


def slots_of(layout: ParameterLayout) -> str:
    return ", ".join(f"{slot.name} {slot.start}:{slot.stop}" for slot in layout.slots)


def test_row_has_parameters_in_order_and_buffers_last():
    layout = ParameterLayout.of(SmallNet())
    assert slots_of(layout) == (
        "conv1.weight 0:2, conv1.bias 2:4, norm.weight 4:6, norm.bias 6:8, fc1.weight 8:14, fc1.bias 14:17, "
        "fc2.weight 17:20, fc2.bias 20:21, norm.running_mean 21:23, norm.running_var 23:25"
    )
    assert (layout.num_columns, layout.num_parameters) == (25, 21)
    assert layout.columns("*").tolist() == list(range(21))  # without the buffers


def test_a_written_row_is_read_back():
    torch.manual_seed(3)
    module, other, row = SmallNet(), SmallNet(), torch.arange(25.0)
    module.norm.num_batches_tracked.fill_(7)
    layout = ParameterLayout.of(module)
    layout.write(row, module)
    assert torch.equal(layout.read(module), row)
    assert module.fc1.weight.tolist() == [[8, 9], [10, 11], [12, 13]]
    assert module.norm.running_var.tolist() == [23, 24]
    assert module.norm.num_batches_tracked == 7  # integers are not written
    module.norm.num_batches_tracked.fill_(0)
    layout.write(layout.read(module), other)
    for (name, tensor), same in zip(module.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(tensor, same), name


def test_row_keeps_the_precision_asked_for_and_leaves_out_buffers_that_are_not_saved():
    module = OneVector().double()
    module.scale.data[0] = 1 / 3
    layout = ParameterLayout.of(module)
    assert layout.read(module, torch.float64).tolist() == [1 / 3, 2]
    assert layout.read(module).dtype == torch.float32


def test_frozen_parameters_are_absent_and_left_alone():
    module = SmallNet()
    module.fc1.weight.requires_grad_(False).fill_(9)
    layout = ParameterLayout.of(module)
    assert layout.columns("fc1").tolist() == [8, 9, 10]  # only the bias
    assert ParameterLayout.of(module.requires_grad_(True)).layers == ("conv1", "norm", "fc1", "fc2")
    module.fc1.requires_grad_(False)
    assert ParameterLayout.of(module).layers == ("conv1", "norm", "fc2")
    layout.write(torch.zeros(19), module)
    assert (module.fc1.weight == 9).all()
    assert (module.fc1.bias == 0).all()


def test_shared_parameter_has_its_columns_once_and_is_found_by_each_layer_that_has_it():
    net = nn.ModuleDict({"enc": nn.Linear(2, 2, bias=False), "dec": nn.Linear(2, 2)})
    net["dec"].weight = net["enc"].weight
    layout = ParameterLayout.of(net)
    layout.write(torch.arange(6.0), net)
    assert layout.num_columns == 6
    assert net["dec"].weight.tolist() == [[0, 1], [2, 3]]
    assert layout.columns("enc").tolist() == layout.columns("dec.weight").tolist() == [0, 1, 2, 3]
    assert layout.columns("dec").tolist() == layout.columns("linear[-1]").tolist() == [0, 1, 2, 3, 4, 5]


def test_module_and_row_do_not_share_memory():
    module, models = OneVector(), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    layout = ParameterLayout.of(module)
    layout.write(models[1], module)
    models.fill_(-1)
    assert module.scale.tolist() == [3, 4]
    row = layout.read(module)  # a single tensor needs no concatenation
    module.scale.data.fill_(-1)
    assert row.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("module", "patterns", "expected"),
    [
        (SmallNet, "fc*", range(8, 21)),
        (SmallNet, "fc1.weight", range(8, 14)),
        (SmallNet, "*.bias", [2, 3, 6, 7, 14, 15, 16, 20]),
        (SmallNet, "norm", range(4, 8)),
        (SmallNet, "conv[0]", range(0, 4)),
        (SmallNet, "linear[-2]", range(8, 17)),
        (SmallNet, ["fc2", "conv1.bias"], [2, 3, 17, 18, 19, 20]),
        (SmallNet, ["fc2", "fc2.bias", "linear[-1]"], range(17, 21)),
        (nested, "fc1", range(0, 8)),  # names go with and without outer modules
        (nested, "net.fc1.bias", [6, 7]),
        (nested, "net.*", range(0, 11)),
        (nested, "linear[1]", [8, 9, 10]),
        (lambda: nn.ModuleDict({"fc1": nn.Linear(1, 1), "fc10": nn.Linear(1, 1)}), "fc1", [0, 1]),  # not fc10
    ],
)
def test_pattern_chooses_columns(module: Callable[[], nn.Module], patterns: str | list[str], expected: Iterable[int]):
    columns = ParameterLayout.of(module()).columns(patterns)
    assert columns.tolist() == list(expected)
    assert columns.dtype == torch.int64


@pytest.mark.parametrize("pattern", ["fc9", "conv[1]", "linear[-3]", "lstm[0]", "running_mean"])
def test_unmatched_pattern_is_refused_with_the_layers(pattern: str):
    listed = "conv1 (conv2d), norm (batchnorm2d), fc1 (linear), fc2 (linear)"
    with pytest.raises(InputError, match=re.escape(repr(pattern)) + ".*" + re.escape(listed)):
        ParameterLayout.of(SmallNet()).columns(["fc1", pattern])


@pytest.mark.parametrize("module", [nn.ReLU(), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 1).requires_grad_(False)])
def test_module_without_trainable_parameters_is_refused(module: nn.Module):
    with pytest.raises(InputError, match=f"{type(module).__name__} has no trainable parameters"):
        ParameterLayout.of(module)


def normalised() -> ParameterLayout:
    """Makes a layout with a convolution, BatchNorm, a linear layer, and BatchNorm without weights."""
    layers = {"conv": nn.Conv1d(1, 1, 1), "bn": nn.BatchNorm1d(1), "fc": nn.Linear(1, 2)}
    return ParameterLayout.of(nn.ModuleDict(layers | {"plain": nn.BatchNorm1d(1, affine=False)}))


def test_layers_are_found_with_their_buffers_also_those_that_have_nothing_else():
    layout = normalised()
    assert layout.columns_with_buffers(["bn"]).tolist() == [2, 3, 8, 9]
    assert layout.columns_with_buffers(["fc", "plain"]).tolist() == [4, 5, 6, 7, 10, 11]
    assert layout.columns_with_buffers(["batchnorm[*]"]).tolist() == [2, 3, 8, 9, 10, 11]
    assert layout.columns("batchnorm[*]").tolist() == [2, 3]
    assert layout.columns(["conv[*]", "linear[*]"]).tolist() == [0, 1, 4, 5, 6, 7]
    for pattern in ("plain", "lstm[*]", "con"):
        with pytest.raises(InputError, match=re.escape(f"'{pattern}' matches nothing; the layers are: conv")):
            layout.columns(pattern)


def test_layout_without_some_layers_renumbers_the_others_and_names_those_left_out():
    layout = normalised().without(torch.tensor([2, 3, 8, 9]))
    assert slots_of(layout) == (
        "conv.weight 0:1, conv.bias 1:2, fc.weight 2:4, fc.bias 4:6, plain.running_mean 6:7, plain.running_var 7:8"
    )
    assert (layout.num_parameters, layout.num_columns, layout.left_out) == (6, 8, ("bn",))
    with pytest.raises(InputError, match=r"the layers are: conv \(conv1d\), fc \(linear\) \(without bn: personal\)"):
        layout.columns("bn")
