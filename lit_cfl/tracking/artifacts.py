"""The W&B artifact of a run: models, memberships and partition."""

import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Algorithm, State
from lit_cfl.engines.engine import Engine
from lit_cfl.errors import Notice

Models = Mapping[str, Mapping[str, Tensor]]  # a state dict for each cluster, by number, and for `global`
MAX_MIB = 256  # maximum size of the models in the artifact


def cluster_models(algorithm: Algorithm, state: State, engine: Engine, clients: Tensor) -> Models:
    """Collects the models in use as state dicts: one per cluster number, and `global` if there is a global model.

    Args:
        clients: Ids int64 `[n]`.
    """
    served = algorithm.serve(state, clients)
    used = served.index[served.index >= 0].unique().tolist()
    if served.weights is not None:
        used = served.weights.any(0).nonzero().flatten().tolist()  # all models of the mixtures
    rows = {str(number): served.models[number] for number in used}
    if "global" in served.extra:
        rows["global"] = served.extra["global"]
    mib = sum(row.numel() * row.element_size() for row in rows.values()) / 2**20
    if mib > MAX_MIB:
        warnings.warn(
            Notice(f"the models are not sent to W&B, since they take {mib:,.0f} MiB; they are in checkpoint.pt"),
            stacklevel=2,
        )
        return {}
    return dict(_state_dicts(engine, rows)) if rows else {}


def _state_dicts(engine: Engine, rows: Mapping[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yields the name and state dict of each row; tensors outside of rows, such as frozen layers, are shared."""
    module = engine.module(next(iter(rows.values()))).cpu()
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    trained = [named[slot.name] for slot in engine.layout.slots]
    for name, row in rows.items():
        engine.layout.write(row, module)
        own = {_place(tensor): tensor.detach().clone() for tensor in trained}  # a tensor may have several names
        yield name, {key: own.get(_place(value), value) for key, value in module.state_dict().items()}


def _place(tensor: Tensor) -> tuple[int, torch.Size]:
    return tensor.data_ptr(), tensor.shape


def log_artifact(run: Any, path: Path, models: Models) -> None:
    """Logs the models, the memberships and the partition of a run directory as one artifact of a W&B run.

    The files are copied into the W&B run's folder first, since they may change before their upload.
    """
    import wandb

    folder = Path(run.dir).parent / "artifact"
    folder.mkdir()
    for name in ("memberships.npz", "partition.npz"):
        shutil.copyfile(path / name, folder / name)
    if models:
        torch.save(models, folder / "models.pt")  # plain tensors, which torch.load(weights_only=True) accepts
    artifact = wandb.Artifact(f"clusters-{run.id}", type="clusters")
    for file in sorted(folder.iterdir()):
        artifact.add_file(str(file), name=file.name, policy="immutable", skip_cache=True)
    run.log_artifact(artifact)
