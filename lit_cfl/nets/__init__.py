"""The papers' nets, one file per family. Layers are named `fc1`, `conv1`, ... in forward order."""

from lit_cfl.nets.base import Net
from lit_cfl.nets.cnn import FEMNISTCNN, MNISTCNN, FashionCNN, LeNet, SattlerCNN, StoCFLCNN
from lit_cfl.nets.last_layer import latent_features
from lit_cfl.nets.mclr import MCLR
from lit_cfl.nets.mlp import MLP
from lit_cfl.nets.recurrent import FedGroupLSTM, Sent140GRU, Sent140LSTM
from lit_cfl.nets.vgg import VGG16

__all__ = [
    "FEMNISTCNN",
    "MCLR",
    "MLP",
    "MNISTCNN",
    "VGG16",
    "FashionCNN",
    "FedGroupLSTM",
    "LeNet",
    "Net",
    "SattlerCNN",
    "Sent140GRU",
    "Sent140LSTM",
    "StoCFLCNN",
    "latent_features",
]
