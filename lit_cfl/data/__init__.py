"""The data of a federated run: a pool of examples, index lists of the clients, and the true clusters."""

from lit_cfl.data.augment import Augment
from lit_cfl.data.examples import Examples, View
from lit_cfl.data.federated import Division, FederatedData, Split
from lit_cfl.data.index import ClientIndex

__all__ = ["Augment", "ClientIndex", "Division", "Examples", "FederatedData", "Split", "View"]
