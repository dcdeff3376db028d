"""AdaCFL, as far as published: CFL that compares clients by the weights of their fully connected layers.

We know it only from its description in the paper on LayerCFL. Neither has an arXiv number that we know of; the parts
that are CFL's are from arXiv:1910.01991.

Where this differs from the paper:
* AdaCFL's own rule for the number of clusters is not in our sources, and no code could be found. The l2 distances
  between the weights of the fully connected layers follow the description. OUR rule cuts at the largest gap between two
  merges of complete linkage, whenever CFL would split. All our results of AdaCFL use it.
* everything else is CFL's (C30, C32): the criterion, the means, and how a newcomer is placed, by l2 distance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lit_cfl.algorithms.splits import SplittingAlgorithm, scale_to_similarity
from lit_cfl.clustering import agglomerate, cross_distances, distances, merge_distances
from lit_cfl.local_work import LocalWork

_ROUNDING = 1e-5  # tolerance for distances scaled to a maximum of 2


@dataclass(frozen=True)
class AdaCFL(SplittingAlgorithm):
    """CFL that compares clients by the l2 distances of their fully connected weights, and splits by a rule of ours.

    Takes the arguments of CFL but `linkage`, and:

    Args:
        layers: Patterns of the layers to compare; none = all fully connected layers.
    """

    paper: ClassVar[str] = (
        "Yuan et al. LayerCFL: An Efficient Federated Learning with Layer-Wised Clustering. Cybersecurity 6, 2023 "
        "(describes AdaCFL)"
    )
    layers: list[str] | None = None
    caveat: ClassVar[str] = (
        "AdaCFL: the authors' rule for the number of clusters is not known; the rule used here is our own"
    )

    def check(self, work: LocalWork) -> None:
        # columns() raises an error that lists the existing layers, even if the net has no fully connected layers
        work.layout.columns((self._layers(work) or ["linear[0]"]) if self.layers is None else self.layers)

    def _layers(self, work: LocalWork) -> list[str]:
        return work.layout.layers_of("linear") if self.layers is None else self.layers

    def features(self, updates: Tensor, start: Tensor) -> Tensor:
        return updates.add_(start[: updates.shape[1]])  # the weights

    def choose_layers(self, features: Tensor, work: LocalWork) -> tuple[list[str], Sequence[Mapping[str, Any]]]:
        return self._layers(work), ()

    def similarity(self, rows: Tensor) -> Tensor:
        return scale_to_similarity(distances(rows, "l2"))

    def nearness(self, rows: Tensor, means: Tensor) -> Tensor:
        return -cross_distances(rows, means, "l2")

    def divide(self, similarity: Tensor) -> Tensor | None:
        return cut_at_largest_gap(similarity)


def cut_at_largest_gap(similarity: Tensor) -> Tensor | None:
    """Clusters clients by complete linkage, and cuts the tree at the largest gap between merge distances.

    Args:
        similarity: Similarities `[n, n]` in [-1, 1], n of at least 3.

    Returns:
        Parts int64 `[n]`, numbered from 0 by lowest member; None without a gap.
    """
    heights = merge_distances(1 - similarity, linkage="complete")  # heights are at most 2
    gaps = heights.diff()
    if not gaps.max() > _ROUNDING:
        return None
    return agglomerate(1 - similarity, linkage="complete", num_clusters=len(gaps) + 1 - int(gaps.argmax()))
