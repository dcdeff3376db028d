"""Runs a user's function on the examples of each client in turn."""

from collections.abc import Iterator

import torch
from lightning import LightningModule
from torch import Tensor

from lit_cfl.data import Examples, FederatedData
from lit_cfl.engines.global_generators import seed_globally
from lit_cfl.errors import note_on_error
from lit_cfl.local_work import ClientFunction, Statistic, keep_statistic
from lit_cfl.seeds import derive


def compute_statistics(
    function: ClientFunction,
    clients: Tensor,
    data: FederatedData,
    examples: Examples,
    module: LightningModule | None,
    *,
    dtype: torch.dtype,
    device: str,
    seed: int,
    round: int,
) -> Iterator[Statistic | None]:
    """Yields the function's result for each client, on the CPU; None for a client without training examples.

    Args:
        function, module: see `LocalWork.map`; the module is shared by all clients.
        clients: ids int64 `[n]`.
        examples: the pool, where it is held.
        dtype, device: Type and device of the inputs.
        seed, round: Seed and round, which with the client seed the global generators for functions that draw.

    Raises:
        InputError: it returns something else than tensors.
    """
    more = () if module is None else (module.eval(),)
    for client in clients.tolist():
        entries = data.train[client]
        if not len(entries):
            yield None
            continue
        batch = examples.batch(entries, dtype, device)
        with (
            note_on_error(lambda: f"in round {round + 1}, by the function of work.map on client {client}"),  # noqa: B023
            seed_globally(derive(seed, "map", round, client), device),
            torch.no_grad(),
        ):
            found = function(*batch, *more)
        yield keep_statistic(found, client)
