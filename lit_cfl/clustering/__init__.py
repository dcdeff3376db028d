"""Similarities of clients, and clusterings computed from them, as pure functions.

Rows are updates (local model minus the model from which it started) restricted to trainable parameters, or models, or
gradients. They are one tensor `[n, d]`, possibly on a memory map, or a list of its chunks; they are read in blocks of
columns and never copied as a whole. Labels are int64, numbered by each cluster's lowest member.
"""

from lit_cfl.clustering.client_map import assign, clusters_of
from lit_cfl.clustering.decomposed import edc, edc_embedding, kmeans, madc
from lit_cfl.clustering.drift import ShiftMetric, find_drifted, label_shift_distance
from lit_cfl.clustering.merging import Linkage, agglomerate, merge_by_threshold, merge_distances
from lit_cfl.clustering.products import Rows
from lit_cfl.clustering.similarity import (
    Metric,
    cosine_similarity,
    cross_distances,
    direction_cosines,
    distances,
)
from lit_cfl.clustering.sketch import random_projection
from lit_cfl.clustering.splitting import bipartition, separation_gap, separation_threshold

__all__ = [
    "Linkage",
    "Metric",
    "Rows",
    "ShiftMetric",
    "agglomerate",
    "assign",
    "bipartition",
    "clusters_of",
    "cosine_similarity",
    "cross_distances",
    "direction_cosines",
    "distances",
    "edc",
    "edc_embedding",
    "find_drifted",
    "kmeans",
    "label_shift_distance",
    "madc",
    "merge_by_threshold",
    "merge_distances",
    "random_projection",
    "separation_gap",
    "separation_threshold",
]
