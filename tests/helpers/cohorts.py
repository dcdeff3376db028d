"""Makes cohorts as tensors, and trains them client by client with PyTorch's own optimizers as a reference."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from lightning import LightningModule
from torch import Tensor, nn

from lit_cfl.engines.cohort import CohortFit
from lit_cfl.engines.dropout import replace_dropout, set_key
from lit_cfl.engines.mini_batches import LocalTraining, MiniBatches, draw_batches, steps_of_epoch
from lit_cfl.engines.task_protocol import losses_of
from lit_cfl.local_work import Budget
from lit_cfl.parameters import ParameterLayout


def made(make: Callable[[], LightningModule], seed: int = 0) -> tuple[LightningModule, ParameterLayout]:
    torch.manual_seed(seed)
    module = replace_dropout(make())
    return module, ParameterLayout.of(module)


def cohort(
    layout: ParameterLayout,
    sizes: Sequence[int],
    local: LocalTraining = LocalTraining(2, 10),
    *,
    shape: Sequence[int] = (1, 4, 4),
    outputs: int = 3,
    labels: Callable[[Tensor], Tensor] | None = None,
    prox: float = 0.0,
    budget: Budget | None = None,
    dtype: torch.dtype = torch.float64,
) -> CohortFit:
    """Makes a cohort of clients of these sizes, with random examples.

    Args:
        labels: Function from random classes `[N]` to labels; None to use the classes.
    """
    rng, total, n = torch.Generator().manual_seed(7), sum(sizes), len(sizes)
    budget = budget or local.budget
    batch_size = local.batch_size_of(budget)
    held = torch.tensor(sizes)
    lengths = torch.as_tensor(budget.length).expand(n)
    classes = torch.randint(outputs, (total,), generator=rng)
    inputs = torch.rand(total, *shape, generator=rng, dtype=torch.float64).to(dtype)
    models = torch.randn(5, layout.num_columns, generator=rng, dtype=torch.float64) / 4
    steps = replace(local, last_batch="keep").count_steps(budget, lengths, held)
    return CohortFit(
        clients=torch.arange(n),
        models=models[:3].to(dtype),
        start=torch.arange(n) % 3,
        prox=prox,
        centers=models[3:].to(dtype) if prox else None,
        center=torch.arange(n) % 2,
        inputs=inputs,
        labels=classes if labels is None else labels(classes),
        sizes=held,
        steps=steps,
        epoch_steps=steps_of_epoch(held, batch_size),
        batches=draw_batches(range(100, 100 + n), held, steps, batch_size),
        keys=torch.randint(2**32, (int(steps.sum()),), generator=rng),
    )


def chosen(work: CohortFit, clients: Sequence[int]) -> CohortFit:
    """Returns the same work for these clients, in this order; a client may occur twice."""
    first, starts = work.first_steps, work.starts

    def parts(table: Tensor, at: Sequence[int], counts: Tensor) -> Tensor:
        return torch.cat([table[at[k] : at[k] + int(counts[k])] for k in clients])

    picked = torch.tensor(clients)
    lists = [one for k in clients for one in work.batches.lists(slice(first[k], first[k] + int(work.steps[k])))]
    counts = torch.tensor([len(one) for one in lists])
    batches = MiniBatches(torch.cat(lists), counts.cumsum(0) - counts, counts)
    return replace(
        work,
        clients=work.clients[picked],
        start=work.start[picked],
        center=work.center[picked],
        inputs=parts(work.inputs, starts, work.sizes),
        labels=parts(work.labels, starts, work.sizes),
        sizes=work.sizes[picked],
        steps=work.steps[picked],
        epoch_steps=work.epoch_steps[picked],
        batches=batches,
        keys=None if work.keys is None else parts(work.keys, first, work.steps),
    )


def plain_fit(
    module: LightningModule, layout: ParameterLayout, work: CohortFit, clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """Trains the clients with the module's optimizer; returns rows `[n, d]` and mean losses `[n]`."""
    module.to(work.models.dtype)
    rows, losses, batches = [], [], work.batches.lists()
    for k, (start, first) in enumerate(zip(work.starts, work.first_steps, strict=True)):
        layout.write(work.models[work.start[k]], module)
        optimizer = module.configure_optimizers()
        named = [(slot, module.get_parameter(slot.name)) for slot in layout.slots]
        total = torch.zeros((), dtype=torch.float64)
        for step in range(first, first + int(work.steps[k])):
            index = batches[step] + start
            if work.keys is not None:
                set_key(module, int(work.keys[step]))
            optimizer.zero_grad()
            loss = losses_of(module, (work.inputs[index], work.labels[index])).mean()
            loss.backward()
            total += loss.detach().double() * len(index)
            if work.centers is not None:
                center = work.centers[work.center[k]]
                for slot, p in named:
                    p.grad += work.prox * (p.detach() - center[slot.start : slot.stop].view(slot.shape))
            if clip is not None:
                nn.utils.clip_grad_norm_([p for _, p in named], clip)
            optimizer.step()
        rows.append(layout.read(module, work.models.dtype))
        losses.append(total)
    return torch.stack(rows), torch.stack(losses) / work.num_seen
