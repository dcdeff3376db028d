"""Estimates the number of distributions of which the clients' data are mixtures, for FedEM.

If the examples of client i come from M distributions with weights pi_i, its mean gradient is the mixture of M gradients
with these weights. The means of all clients then lie in M - 1 dimensions around their common mean.
experiments/studies/automatic_clusters.md says how the threshold was chosen, and where the rule fails.
"""

import torch
from torch import Tensor

from lit_cfl.clustering.products import gram
from lit_cfl.clustering.similarity import cosines

MARGIN = 1.2  # a direction counts if its variance is this much above what noise alone gives
_ROUNDING = 1e-6


def number_of_components(halves: Tensor, labels: Tensor, most: int) -> int:
    """Estimates the number of mixture components: 1 + the number of directions in which clients differ beyond noise.

    A direction counts if both halves of a client's data move a model alike in it. What the clients' shares of labels
    explain linearly is left out: if all clients have the same inputs for a label, more models help nobody. Updates are
    scaled to length 1, so that clients with many examples do not count as different; this bends the plane in which they
    lie, and may add a component if there is hardly any noise.

    Args:
        halves: Updates of the clients from either half of their examples `[2, n, d]`.
        labels: Number of examples of each label `[n, labels]`; without columns nothing is left out.
        most: Maximum number of components, 1 or more.

    Returns:
        1 to `most`.

    Raises:
        InputError: an update that is not finite.
    """
    n = halves.shape[1]
    products = cosines(gram(halves.flatten(0, 1)))  # of rows of length 1, [2 n, 2 n]
    shares = labels.double() / labels.sum(1, keepdim=True).clamp(min=1)
    known = torch.cat([torch.ones(n, 1, dtype=torch.float64), shares], dim=1)
    unexplained = torch.eye(n, dtype=torch.float64) - known @ torch.linalg.pinv(known)
    of_both = torch.block_diag(unexplained, unexplained)
    values, vectors = torch.linalg.eigh(of_both @ products @ of_both.T)
    one, other = (vectors * values.clamp(min=0).sqrt()).split(n)  # rows with these inner products
    common = torch.linalg.eigvalsh((one.T @ other + other.T @ one) / 2).flip(0)
    noise = -common[-1]  # noise alone has eigenvalues of equal size above and below 0
    return 1 + int((common[: most - 1] > MARGIN * noise.clamp(min=0) + _ROUNDING * n).sum())
