"""Applies `data.augment` to the examples of clients' mini-batches, with a random key for each occurrence."""

from dataclasses import replace

import torch
from torch import Tensor

from lit_cfl.data.augment import AugmentFunction
from lit_cfl.devices import send
from lit_cfl.engines.cohort_fit import CohortFit
from lit_cfl.engines.mini_batches import MiniBatches

_BLOCK = 2**22  # maximum number of input values that are augmented at once


def augment_examples(work: CohortFit, augment: AugmentFunction) -> CohortFit:
    """Replaces a cohort's examples with augmented copies, one for each occurrence in a mini-batch.

    Every way of training then reads them as any other examples. An example occurs once for each of the client's
    mini-batches that contains it.

    Args:
        work: Local training of the cohort, with `augment_keys`.
        augment: See `AugmentFunction`; an example's key consists of its step's key and its position in the client.
    """
    if work.augment_keys is None:
        raise TypeError("augmentation needs augment_keys")
    device, counts = work.inputs.device, work.batches.counts
    begins, firsts = counts.cumsum(0) - counts, work.sizes.cumsum(0) - work.sizes
    steps = torch.arange(len(counts)).repeat_interleave(counts)  # step of each example
    owners = torch.arange(len(work)).repeat_interleave(work.steps)[steps]
    drawn = work.batches.begins[steps] + torch.arange(len(steps)) - begins[steps]
    places = work.batches.drawn[send(drawn, device)]
    keys = (send(work.augment_keys[steps], device) << 32) ^ places
    index = places + send(firsts[owners], device)
    inputs, labels = _augment_cohort(work, augment, index, keys)
    weights = None if work.weights is None else work.weights[index]
    sizes = work.num_seen
    own = torch.arange(len(steps)) - (sizes.cumsum(0) - sizes)[owners]
    batches = MiniBatches(send(own, device), begins, counts)
    work = replace(work, inputs=inputs, labels=labels, weights=weights)
    return replace(work, sizes=sizes, batches=batches, augment_keys=None)


def _augment_cohort(work: CohortFit, augment: AugmentFunction, index: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Augments these examples of the cohort, in blocks of limited size."""
    inputs, labels = (part.new_empty(len(index), *part.shape[1:]) for part in (work.inputs, work.labels))
    size = max(1, _BLOCK // max(1, work.inputs.shape[1:].numel()))
    for start in range(0, len(index), size):
        part = slice(start, start + size)
        own = index[part]
        inputs[part], labels[part] = augment((work.inputs[own], work.labels[own]), keys[part])
    return inputs, labels
