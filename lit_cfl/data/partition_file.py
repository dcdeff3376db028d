"""Saves, loads and hashes a partition: the file `partition.npz` of every run."""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lit_cfl.data.examples import Examples, View
from lit_cfl.data.federated import LIST_ARRAYS, FederatedData, lists_of, with_lists
from lit_cfl.data.index import ClientIndex
from lit_cfl.data.npz import read_npz
from lit_cfl.errors import InputError
from lit_cfl.storage.atomic_writes import write_atomically

FORMAT = 1
TRUTH, _LISTED_TRUTH = "true_cluster", "true_clusters"  # name in all files of a run, and in `LIST_ARRAYS`


def partition_hash(data: FederatedData) -> str:
    """Hashes the partition and its data (SHA-256), so that a run can record what it used."""
    digest = sha256(f"{data.examples.fingerprint} {_views(data.examples)} {data.skew}".encode())
    for name, array in _arrays(data).items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def save_partition(path: Path, data: FederatedData) -> None:
    """Writes a partition atomically, with its hash, its seed and the fingerprint of its data."""
    about = {
        "format": FORMAT,
        "hash": partition_hash(data),
        "data": data.examples.fingerprint,
        "seed": data.partition_seed,
        "views": _views(data.examples),
        "skew": data.skew,
        "clients": data.num_clients,
        "labels": list(data.examples.label_names),
        "cluster_names": list(data.cluster_names),
    }
    arrays: dict[str, Any] = {"about": np.array(json.dumps(about)), **_arrays(data)}
    arrays[TRUTH] = arrays.pop(_LISTED_TRUTH)
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))


def load_partition(path: Path, examples: Examples) -> FederatedData:
    """Reads a partition of these examples.

    Raises:
        InputError: the file does not exist, is damaged, or was made for other data.
    """
    try:
        lists = [TRUTH if name == _LISTED_TRUTH else name for name in LIST_ARRAYS]
        arrays = read_npz(path, ("about", "names", "newcomers", *lists), ("about", TRUTH), no_others=True)
        arrays[_LISTED_TRUTH] = arrays.pop(TRUTH)
        about = json.loads(str(arrays.pop("about")))
        _require_made_for(path, about, examples)
        data = _build_data(arrays, about, examples)
        intact = partition_hash(data) == about["hash"]
    except FileNotFoundError as error:
        raise InputError(f"there is no partition file {path}; a run saves its own as RUN_DIR/partition.npz") from error
    except (KeyError, ValueError, OSError, TypeError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a partition file, or is damaged ({error}); save it again") from error
    if not intact:
        raise InputError(f"{path} does not match its own hash: it was changed or damaged; save it again")
    return data


def read_about(path: Path) -> dict[str, Any]:
    """Reads the description of a partition, such as its `hash`, its `seed` and the fingerprint of its `data`.

    Raises:
        FileNotFoundError, InputError: as in `read_npz`.
    """
    about: dict[str, Any] = json.loads(str(read_npz(path, ("about",), required=("about",))["about"]))
    return about


def _require_made_for(path: Path, about: Mapping[str, Any], examples: Examples) -> None:
    if about["format"] != FORMAT:
        raise InputError(
            f"{path} has format {about['format']}, but this version reads {FORMAT}; make the partition again"
        )
    found = {"data": examples.fingerprint, "views": _views(examples)}
    for name, what in {"data": "other data", "views": "another skew or shift"}.items():
        if about[name] != found[name]:
            raise InputError(
                f"{path} was made for {what} (data {about['data']}, these are {examples.fingerprint}); give the data "
                "options that it was made with"
            )


def _build_data(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any], examples: Examples) -> FederatedData:
    none, nobody = ClientIndex.empty(about["clients"]), torch.empty(0, dtype=torch.int64)
    blank = FederatedData(examples, none, none, none, nobody, about["skew"])
    names = tuple(arrays["names"].tolist()) if "names" in arrays else ()
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if name != "names"}
    newcomers = tensors.pop("newcomers", None)
    clusters = tuple(about["cluster_names"])
    data = replace(with_lists(blank, tensors), names=names, cluster_names=clusters)
    return replace(data, newcomers=newcomers, partition_seed=about["seed"])


def _arrays(data: FederatedData) -> dict[str, np.ndarray]:
    newcomers = {} if data.newcomers is None else {"newcomers": data.newcomers}
    tensors = lists_of(data) | newcomers
    names = {"names": np.array(data.names)} if data.names else {}
    return {name: tensor.numpy() for name, tensor in tensors.items()} | names


def _views(examples: Examples) -> list[list[Any]]:
    return [
        [view.quarter_turns, view.label_map and list(view.label_map), view.noise, *_further_fields(view)]
        for view in examples.views
    ]


def _further_fields(view: View) -> list[Any]:
    """Lists a view's angle, blur, brightness and colour; empty if all have their defaults."""
    further = [view.angle, view.blur, view.brightness, list(view.colour)]
    return [] if further == [0.0, 0.0, 1.0, []] else further
