"""Pictures of data and of runs, drawn without a display and without global state."""

from lit_cfl.pictures.data import example_images, label_distribution, size_histogram
from lit_cfl.pictures.layers import layer_scores
from lit_cfl.pictures.run import accuracies, client_map, memberships, similarity

__all__ = [
    "accuracies",
    "client_map",
    "example_images",
    "label_distribution",
    "layer_scores",
    "memberships",
    "similarity",
    "size_histogram",
]
