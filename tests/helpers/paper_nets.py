"""The papers' nets, with the numbers of parameters that the papers state (docs/ground_truth.md, check 28)."""

import torch
from quadratic import rng
from torch import Tensor

from lit_cfl.nets import (
    FEMNISTCNN,
    MCLR,
    MLP,
    MNISTCNN,
    VGG16,
    FashionCNN,
    FedGroupLSTM,
    LeNet,
    Net,
    SattlerCNN,
    Sent140GRU,
    Sent140LSTM,
    StoCFLCNN,
)

GREY, COLOUR, TWEET = [1, 28, 28], [3, 32, 32], [25, 300]
CONVOLUTIONAL = [MNISTCNN, FEMNISTCNN, FashionCNN, LeNet, StoCFLCNN, SattlerCNN]
RECURRENT = [Sent140GRU, Sent140LSTM, FedGroupLSTM]

# net, options, shape of an input, number of outputs, number of parameters
COUNTS: list[tuple[type[Net], dict[str, object], list[int], int, int]] = [
    (MCLR, {}, GREY, 10, 7_850),
    (MCLR, {}, GREY, 26, 20_410),
    (MCLR, {}, [60], 10, 610),
    (MLP, {}, GREY, 10, 101_770),
    (MLP, {"hidden": 200}, GREY, 10, 159_010),
    (MLP, {"hidden": 512}, GREY, 10, 407_050),
    (MLP, {"hidden": 512}, GREY, 26, 415_258),
    (MLP, {"hidden": 2048}, GREY, 10, 1_628_170),
    (MNISTCNN, {}, GREY, 10, 50_186),
    (FEMNISTCNN, {}, GREY, 10, 325_578),
    (FashionCNN, {}, GREY, 10, 3_274_634),
    (LeNet, {}, COLOUR, 10, 62_006),
    (StoCFLCNN, {}, GREY, 62, 1_206_590),
    (SattlerCNN, {}, GREY, 62, 18_506),
    (Sent140GRU, {}, TWEET, 2, 175_938),
    (Sent140LSTM, {}, TWEET, 2, 232_386),
    (FedGroupLSTM, {}, TWEET, 2, 243_861),
    (VGG16, {"hidden": []}, COLOUR, 10, 14_719_818),
    (VGG16, {"hidden": []}, [1, 32, 32], 26, 14_726_874),
    (VGG16, {"hidden": [512, 512]}, COLOUR, 10, 15_245_130),
    (VGG16, {"hidden": [512, 512]}, [1, 32, 32], 26, 15_252_186),
    (VGG16, {}, COLOUR, 10, 33_638_218),
    (VGG16, {}, [1, 32, 32], 26, 33_702_618),
    (VGG16, {}, [3, 224, 224], 10, 134_301_514),
    (VGG16, {}, [1, 224, 224], 26, 134_365_914),
    (VGG16, {"hidden": [], "batch_norm": True}, COLOUR, 10, 14_728_266),
    (VGG16, {"hidden": [], "batch_norm": True}, [1, 32, 32], 26, 14_735_322),
]


def inputs_of(count: int, *shape: int) -> Tensor:
    return torch.randn(count, *shape, generator=rng(1))


def small(net: type[Net]) -> Net:
    """Builds a net for inputs of the papers' shape and two labels; VGG16 with a width of 2."""
    if net is VGG16:
        return VGG16(hidden=[8], width=2, input_shape=COLOUR, num_labels=2)
    return net(input_shape=TWEET if net in RECURRENT else GREY, num_labels=2)
