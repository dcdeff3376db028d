"""Pictures of federated data: labels and sizes of clients, and examples of images."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from lit_cfl.data import FederatedData
from lit_cfl.errors import count_noun, join_ids
from lit_cfl.pictures.colours import shorten
from lit_cfl.pictures.panels import BLUE, COLUMN, LOOK, PAGE, VERMILLION, PaperFigure
from lit_cfl.pictures.sample import sample

_MAX_CLUSTERS = 16
_MIN_ROWS = 6  # with fewer labels the picture is as high as with this many, so that the colour bar's label fits
_MAX_NAMED = 40  # maximum number of clients, or of true clusters, that are named on an axis
_MAX_COLUMNS = 8  # maximum number of images side by side


@rc_context(LOOK)
def label_distribution(data: FederatedData) -> Figure | None:
    """Draws the label shares in each client's training data, by true cluster; None if labels cannot be counted.

    An example with several labels counts for each of them: shares are of the client's labels.
    """
    if data.examples.label_kind not in ("classes", "multi-label"):
        return None
    clients = data.population[torch.from_numpy(sample(data.true_clusters[data.population].numpy()))]
    order = clients[data.true_clusters[clients].argsort(stable=True)]
    counts = data.subset(order).label_counts.double()
    shares = (counts / counts.sum(1, keepdim=True).clamp(min=1)).T
    rows = min(max(len(shares), _MIN_ROWS), 30)
    names = [_name(client, data.names) for client in order.tolist()] if len(order) <= _MAX_NAMED else []
    height = 1.3 + 0.13 * rows + 0.07 * max(map(len, names), default=0)  # of the names: inches per letter
    figure = PaperFigure(figsize=(PAGE, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(visible=False)
    picture = axes.imshow(shares.numpy(), aspect="auto", cmap="viridis", vmin=0, interpolation="nearest")
    counted = "labels" if data.examples.label_kind == "multi-label" else "examples"
    figure.colorbar(picture, label=f"share of the client's {counted}", pad=0.01)
    some = "" if len(clients) == len(data.population) else f" ({len(clients)} of {len(data.population)} shown)"
    axes.set(xlabel=f"clients{some}", ylabel="label")
    if len(shares) <= 30:
        axes.set_yticks(range(len(shares)), [_name(label, data.examples.label_names) for label in range(len(shares))])
    axes.set_title("Labels of the clients' training data")
    axes.set_xticks(range(len(names)), names, rotation=90)
    if bool((data.true_clusters[clients] >= 0).any()):
        _mark_clusters(axes, data.true_clusters[order], len(shares), data.cluster_names)
    return figure


def _name(number: int, names: Sequence[str]) -> str:
    """Returns a name for an axis, or the number if it has no name; `?` for -1."""
    return "?" if number < 0 else (shorten(names[number]) if number < len(names) else "") or str(number)


def _mark_clusters(axes: Axes, clusters: torch.Tensor, height: int, known: Sequence[str]) -> None:
    numbers, sizes = clusters.unique_consecutive(return_counts=True)
    ends = sizes.cumsum(0)
    if len(numbers) <= _MAX_NAMED:
        axes.vlines((ends[:-1] - 0.5).tolist(), -0.5, height - 0.5, colors="white", linewidth=0.8)
        names = [_name(number, known) for number in numbers.tolist()]
        above = axes.secondary_xaxis("top")
        above.set_xticks((ends - sizes / 2 - 0.5).tolist(), names)
        above.set_xlabel("true cluster")


@rc_context(LOOK)
def size_histogram(data: FederatedData) -> Figure:
    """Draws a histogram of the clients' numbers of training examples."""
    sizes = data.num_examples[data.population]
    figure = PaperFigure(figsize=(COLUMN, 2.2), layout="constrained")
    axes = figure.subplots()
    low, high = int(sizes.min()), int(sizes.max())
    label = "training examples of a client"
    if high > 20 * max(1, low):
        axes.hist(sizes.numpy(), bins=np.geomspace(max(1, low), high + 1, 31).tolist(), color=BLUE)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        if low == 0:  # has no place on a logarithmic axis
            label += f"; {count_noun(int((sizes == 0).sum()), 'client')} without any"
    else:
        step = max(1, -(-(high - low + 1) // 30))
        edges = np.arange(low, high + step + 1, step) - 0.5
        axes.hist(sizes.numpy(), bins=edges.tolist(), color=BLUE)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    middle = float(np.median(sizes.numpy()))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    axes.axvline(middle, color=VERMILLION, linestyle="--", label=f"median {middle:g}")
    axes.set(xlabel=label, ylabel="clients", title="Sizes of the clients")
    axes.legend(framealpha=1, edgecolor="none")  # readable where bars leave no room
    return figure


@rc_context(LOOK)
def example_images(data: FederatedData) -> Figure | None:
    """Draws a training image of each true cluster, as its clients see it; None without images."""
    if len(data.examples.input_shape) != 3 or data.examples.input_shape[0] not in (1, 3):
        return None
    found = _one_of_each_cluster(data)
    if not found:
        return None
    columns = min(len(found), _MAX_COLUMNS)
    rows = -(-len(found) // columns)
    figure = PaperFigure(figsize=(PAGE / _MAX_COLUMNS * columns, 1.25 * rows), layout="constrained")
    places = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).flatten()
    for axes in places:
        axes.axis("off")
    images = data.examples.batch(torch.stack([index for _, index in found]))[0].permute(0, 2, 3, 1)
    low, high = images.min(), images.max()  # of all images, so that a brightness can be compared
    scaled = (images - low) / (high - low).clamp(min=1e-9)
    for axes, image, (cluster, index) in zip(places, scaled, found, strict=False):
        axes.imshow((image if image.shape[-1] == 3 else image[..., 0]).numpy(), cmap="gray", vmin=0, vmax=1)
        where = [f"cluster {_name(cluster, data.cluster_names)}"] if any(k >= 0 for k, _ in found) else []
        label = [] if data.examples.label_kind == "none" else [f"label {_label_of(data, index)}"]
        axes.set_title("\n".join([*where, *label]))
    return figure


def _label_of(data: FederatedData, index: torch.Tensor) -> str:
    """Returns the label of an example as its client sees it; several labels as a list."""
    (target,), names = data.examples.targets(index[None]), data.examples.label_names
    if target.ndim:
        return join_ids([_name(label, names) for label in (target > 0.5).nonzero().flatten().tolist()]) or "none"
    return _name(int(target), names) if data.examples.label_kind == "classes" else f"{float(target):g}"


def _one_of_each_cluster(data: FederatedData) -> list[tuple[int, torch.Tensor]]:
    """Chooses a training example for each cluster; all with the same stored label if possible."""
    trained = data.population[data.num_examples[data.population] > 0]
    held = []
    for cluster in data.true_clusters[trained].unique().tolist()[:_MAX_CLUSTERS]:
        mine = trained[data.true_clusters[trained] == cluster]
        held.append((cluster, data.train.select(mine[:50]).entries))
    if data.examples.label_kind == "multi-label" or not held:
        return [(cluster, entries[0]) for cluster, entries in held]
    stored = [data.examples.labels[entries % len(data.examples)] for _, entries in held]
    common = set.intersection(*(set(labels.tolist()) for labels in stored))
    chosen = [(labels == sorted(common)[len(common) // 2]).nonzero()[0, 0] if common else 0 for labels in stored]
    return [(cluster, entries[k]) for (cluster, entries), k in zip(held, chosen, strict=True)]
