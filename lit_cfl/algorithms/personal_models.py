"""One model per client, stored by client id, as in Ditto and Local."""

from collections.abc import Mapping

import torch
from torch import Tensor

from lit_cfl.local_work import Chunk, Fitted, LocalWork
from lit_cfl.memmap_rows import collect_rows, keep_row

# rows [d] by client; stored in files if all of them would take more than half of the memory
PersonalModels = Mapping[int, Tensor]


def starting_models(personal: PersonalModels, clients: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    """Lists the models from which clients start: their own, or the initial one if they have none.

    Args:
        clients: Ids of the clients, int64 `[n]`.
        initial: Initial model `[d]`.

    Returns:
        models `[K, d]`, the initial one first, and which of them each client starts from, int64 `[n]`.
    """
    asked = clients.tolist()
    own = [personal[client] for client in asked if client in personal]
    trained_before = torch.tensor([client in personal for client in asked], dtype=torch.bool)
    return torch.stack([initial, *own]), trained_before * trained_before.cumsum(0)


def keep_trained(
    fitted: Fitted, clients: Tensor, into: dict[int, Tensor], work: LocalWork, columns: slice = slice(None)
) -> Fitted:
    """Copies each trained local model into a dict by client, when the fit is read. Returns the fit.

    Args:
        clients: Ids of the clients in the fit, int64 `[n]`.
        columns: Columns to keep.
    """

    def keep(chunk: Chunk) -> None:
        ids = clients[chunk.start : chunk.start + len(chunk.models)][chunk.trained].tolist()
        for client, row in zip(ids, chunk.models[chunk.trained], strict=True):
            into[client] = keep_row(row[columns], of=len(work.num_examples))

    return fitted.on_read(keep)


def with_trained(personal: PersonalModels, fitted: Fitted, clients: Tensor, work: LocalWork) -> dict[int, Tensor]:
    """Returns the personal models, updated for the clients `[n]` of a fit that trained; reads the fit."""
    trained: dict[int, Tensor] = {}
    keep_trained(fitted, clients, trained, work).read()
    return dict(personal) | dict(sorted(trained.items()))  # numbers must not depend on the order of the clients


def clients_without_model(personal: PersonalModels, clients: Tensor) -> Tensor:
    """Lists the clients without a personal model, int64 `[m]`."""
    return clients[torch.tensor([client not in personal for client in clients.tolist()], dtype=torch.bool)]


def look_up_models(personal: PersonalModels, clients: Tensor, fallback: Tensor) -> tuple[Tensor, Tensor]:
    """Looks up the models of clients.

    Args:
        clients: Ids of the clients, int64 `[n]`.
        fallback: Models `[1, d]` to return if no client has one; no client is assigned to them.

    Returns:
        all models `[K, d]`, in the order in which clients first trained, so that a number stays that of one client, and
        which of them each client has, int64 `[n]`, -1 = none.
    """
    if not personal:
        return fallback, torch.full((len(clients),), -1)
    numbers = {client: number for number, client in enumerate(personal)}
    models = collect_rows((model[None] for model in personal.values()), len(personal))
    return models, torch.tensor([numbers.get(client, -1) for client in clients.tolist()], dtype=torch.int64)
