"""Index lists with those of some clients replaced."""

import torch
from torch import Tensor

from lit_cfl.data import ClientIndex


def replaced(index: ClientIndex, clients: Tensor, lists: ClientIndex) -> ClientIndex:
    """The same index with other lists for these clients.

    The new lists are appended; what nobody has any more goes once it is more than half of the array. Clients that share
    a stretch go on to share it.

    Args:
        index: of all clients.
        clients: ids int64 `[n]`, each once.
        lists: of these clients, in their order.
    """
    new, stretch_of = distinct(lists)
    new = new.packed().select(stretch_of)
    starts = index.starts.index_copy(0, clients, new.starts + len(index.values))
    sizes = index.sizes.index_copy(0, clients, new.sizes)
    whole = ClientIndex(torch.cat([index.values, new.values]), starts, sizes)
    stretches, stretch_of = distinct(whole)
    if len(whole.values) <= 2 * int(stretches.sizes.sum()):
        return whole
    return stretches.packed().select(stretch_of)


def distinct(index: ClientIndex) -> tuple[ClientIndex, Tensor]:
    """The different stretches of an index, and the stretch of each client, int64 `[clients]`."""
    width = int(index.sizes.max()) + 1 if len(index) else 1
    keys, stretch_of = (index.starts * width + index.sizes).unique(return_inverse=True)  # one number for a pair
    return ClientIndex(index.values, keys // width, keys % width), stretch_of
