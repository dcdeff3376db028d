"""LayerCFL: CFL that compares clients only by the layers that reveal their kind of skew.

Cybersecurity 6, 2023, Algorithms 1 and 2, Equations 23 to 28. It has no arXiv number that we know of; it builds on CFL,
arXiv:1910.01991.

Where this differs from the paper (in addition to CFL's list: C29 to C32):
* eps2 is compared with the norm of the whole update, like eps1; the paper uses the selected layers, whose scale depends
  on their size, and lets eps2 range from eps1 to 10 eps1 (C33).
* linkage is not stated; ours is single, as in CFL, for every distance.
* Algorithm 2 splits at >= eps2, CFL's code above it, and so do we.
* "a conv layer" is the fourth convolution, as in the paper's VGG16, or the last one if there are fewer; "an FC layer"
  the first fully connected one. `layers: auto` is ours: it never sees true clusters.
* newcomers are compared by the layers that were used for the split.
* l2 distances are converted to 1 - 2 l2 / the largest l2, so that layers of any size can be compared.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from lit_cfl.algorithms.cfl import CFL
from lit_cfl.algorithms.splits import scale_to_similarity, select_columns
from lit_cfl.clustering import (
    bipartition,
    cosine_similarity,
    cross_distances,
    direction_cosines,
    distances,
    separation_gap,
)
from lit_cfl.clustering.cluster_scores import silhouette
from lit_cfl.errors import Notice, require_word
from lit_cfl.local_work import LocalWork
from lit_cfl.parameters import ParameterLayout

_FEATURE_LAYER = 3  # conv4 of VGG16 in the paper


@dataclass(frozen=True)
class LayerCFL(CFL):
    """CFL that compares clients by some of the layers.

    Takes the arguments of CFL, and:

    Args:
        layers: Layers to compare: `by_skew` (paper): a convolution for feature skew, a fully connected layer for label
            skew, otherwise all; `auto`: the layer whose bipartition has the largest mean silhouette, chosen at each
            split; or patterns of layers, such as `["conv4"]`, `["fc*"]`, `["*"]` (= CFL).
        distance: Distance of two clients: `cos` or `l2` of their weights in these layers, `delta_cos` or `delta_l2` of
            their updates.
    """

    paper: ClassVar[str] = (
        "Yuan et al. LayerCFL: An Efficient Federated Learning with Layer-Wised Clustering. Cybersecurity 6, 2023"
    )
    layers: Literal["by_skew", "auto"] | list[str] = "by_skew"
    distance: Literal["l2", "delta_l2", "cos", "delta_cos"] = "delta_cos"
    tables: ClassVar[dict[str, tuple[str, ...]]] = {"layers": ("cluster", "layer", "silhouette", "gap", "chosen")}

    def __post_init__(self) -> None:
        if not isinstance(self.layers, list):  # before the check of types, which would only ask for a list
            require_word("layers", self.layers, ["by_skew", "auto", "a list of layers"])
        super().__post_init__()

    def check(self, work: LocalWork) -> None:
        if isinstance(self.layers, list):
            work.layout.columns(self.layers)
        elif self.layers == "by_skew" and self.layers_by_skew(work.layout, work.skew) == ["*"]:
            lacks = {"feature": "the net has no convolution", "label": "the net has no fully connected layer"}
            why = lacks.get(work.skew, f"the data's skew is {work.skew}")
            warnings.warn(
                f"LayerCFL compares all layers, as CFL does, since layers is by_skew and {why}; to compare "
                "some layers, set layers to auto, or name them",
                Notice,
                stacklevel=2,
            )

    def features(self, updates: Tensor, start: Tensor) -> Tensor:
        return updates if self.distance.startswith("delta") else updates.add_(start[: updates.shape[1]])

    def choose_layers(self, features: Tensor, work: LocalWork) -> tuple[list[str], Sequence[Mapping[str, Any]]]:
        if self.layers != "auto":
            return self.layers_by_skew(work.layout, work.skew), ()
        scores = self.score_layers(features, work.layout)
        best = max(scores, key=lambda layer: _number(scores[layer]["silhouette"]))  # ties: the earlier layer
        return [best], [{"layer": layer, **found, "chosen": int(layer == best)} for layer, found in scores.items()]

    def layers_by_skew(self, layout: ParameterLayout, skew: str) -> list[str]:
        """Chooses the layers by the data's skew, such as `feature` or `label` (Algorithm 2), unless they are given."""
        if isinstance(self.layers, list):
            return self.layers
        convolutions, connected = layout.layers_of("conv"), layout.layers_of("linear")
        if skew == "feature" and convolutions:
            return [convolutions[min(_FEATURE_LAYER, len(convolutions) - 1)]]
        return [connected[0]] if skew == "label" and connected else ["*"]

    def score_layers(self, features: Tensor, layout: ParameterLayout) -> dict[str, dict[str, float]]:
        """Scores each layer by how well a bipartition by this layer alone separates the clients.

        Args:
            features: Weights or updates of the clients `[n, columns]`.
        """
        found = {}
        for layer in layout.layers:
            similarity = self.similarity(select_columns(features, layout.columns(layer)))
            parts = bipartition(similarity, self.linkage)
            found[layer] = {"silhouette": silhouette(similarity, parts), "gap": separation_gap(similarity, parts)}
        return found

    def similarity(self, rows: Tensor) -> Tensor:
        near = self.distance.endswith("cos")
        return cosine_similarity(rows) if near else scale_to_similarity(distances(rows, "l2"))  # Eq. 26: cosines

    def nearness(self, rows: Tensor, means: Tensor) -> Tensor:
        near = self.distance.endswith("cos")
        return direction_cosines(rows, means) if near else -cross_distances(rows, means, "l2")


def _number(score: float) -> float:
    return score if score == score else float("-inf")  # nan: no separation
