"""AdaCFL as far as it is known: CFL by the distances of fully connected weights, into as many parts as show.

Described in: Yuan et al. LayerCFL: An Efficient Federated Learning with Layer-Wised Clustering. Cybersecurity 6, 2023.
Neither has an arXiv number that we know of; what is CFL's in it is of arXiv:1910.01991.

Where this differs from the paper:
* AdaCFL's own rule for the number of clusters is not in our sources, and no code could be found. Taken from the
  description are the l2 distances between the weights of the fully connected layers; OURS is the cut at the largest gap
  between two merges of complete linkage, at the moments at which CFL splits. Whatever a table says of AdaCFL holds for
  this rule alone.
* everything else is CFL's (C30, C32): the criterion, the means, and how a newcomer is placed, by l2 distance.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lit_cfl.algorithms.cfl import CFL
from lit_cfl.algorithms.splits import Comparison, Still, scaled_similarity, with_columns
from lit_cfl.clustering import agglomerate, cross_distances, distances, merge_distances
from lit_cfl.errors import InputError
from lit_cfl.local_work import LocalWork

_ROUNDING = 1e-5  # of distances scaled to 2


@dataclass(frozen=True)
class AdaCFL(CFL):
    """CFL with l2 distances of fully connected weights, cut at the largest gap (our rule: AdaCFL's is not known).

    The arguments of CFL without `gamma_max` and `linkage`, and:

    Args:
        layers: patterns of the layers to compare; none = all fully connected ones.
    """

    layers: list[str] | None = None
    caveat: ClassVar[str] = "AdaCFL: its rule for the number of clusters is not known; this one is ours"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma_max is not None:
            raise InputError(f"gamma_max is {self.gamma_max}, but Theorem 1 speaks of cosines, not of l2; give null")
        if self.linkage != "single":
            raise InputError(f"linkage is {self.linkage}, but AdaCFL splits by no bipartition; leave it out")

    def check(self, work: LocalWork) -> None:
        work.layout.columns(self._layers(work) or ["linear[0]"])  # raises, and says which layers there are

    def _layers(self, work: LocalWork) -> list[str]:
        return work.layout.layers_of("linear") if self.layers is None else self.layers

    def _compare(self, still: Still, work: LocalWork) -> Comparison | None:
        if still.v <= self.eps2:
            return None
        features, layers = self._features(still.updates, still.start), self._layers(work)
        rows = with_columns(features, work.layout.columns(layers))
        return Comparison(features, layers, scaled_similarity(distances(rows, "l2")))

    def _parts(self, similarity: Tensor) -> Tensor | None:
        """As many clusters as there are below the largest gap between merges; None without a gap."""
        heights = merge_distances(1 - similarity, linkage="complete")  # 2 at most
        gaps = heights.diff()
        if not gaps.max() > _ROUNDING:
            return None
        return agglomerate(1 - similarity, linkage="complete", num_clusters=len(gaps) + 1 - int(gaps.argmax()))

    def _features(self, updates: Tensor, start: Tensor) -> Tensor:
        return updates.add_(start[: updates.shape[1]])  # in place: the rows may fill a disk

    def _closeness(self, features: Tensor, means: Tensor) -> Tensor:
        return -cross_distances(features, means, "l2")
