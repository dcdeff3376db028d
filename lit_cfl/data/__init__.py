"""What a federated run trains on: examples held once, index lists that say which client has which, and the truth."""

from lit_cfl.data.examples import Examples, View
from lit_cfl.data.federated import Division, FederatedData, Split
from lit_cfl.data.index import ClientIndex

__all__ = ["ClientIndex", "Division", "Examples", "FederatedData", "Split", "View"]
