"""Pictures of data and of runs, drawn without a display and without global state."""

from lit_cfl.pictures.curves import learning_curve
from lit_cfl.pictures.data import example_images, label_distribution, size_histogram
from lit_cfl.pictures.layers import layer_scores
from lit_cfl.pictures.run import client_map, histogram, memberships, similarity

__all__ = [
    "client_map",
    "example_images",
    "histogram",
    "label_distribution",
    "layer_scores",
    "learning_curve",
    "memberships",
    "similarity",
    "size_histogram",
]
