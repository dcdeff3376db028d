"""The Ray cluster of a study: an existing one, or one on this machine for the duration of the study."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lit_cfl.devices import count_cores
from lit_cfl.engines.plan import Plan
from lit_cfl.engines.ray import cluster as ray_cluster
from lit_cfl.errors import InputError
from lit_cfl.tune.study import Resources

_SETTINGS = {
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # the study prints why a trial was restarted or failed
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that fails before its first round reports no metric
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the runs write their own files
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # our own signal handler also stops Ray
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths then mean the same as when they were checked
}


@contextmanager
def connect_to_ray(address: str | None, resources: Resources) -> Iterator[None]:
    """Connects to Ray within the block, and stops Ray afterwards if it was started here.

    Raises:
        InputError: the cluster does not answer, or no node has the resources that a trial needs.
    """
    asked = os.environ.get("RAY_ADDRESS", "") if address is None else address
    if asked.startswith("ray://"):
        raise InputError(
            f"a search cannot run through {asked!r}; run lit-cfl tune on a node of the cluster, with its <host>:6379, "
            "or send the study with lit-cfl launch --address http://HOST:8265"
        )
    before = dict(os.environ)
    os.environ.update({name: value for name, value in _SETTINGS.items() if name not in os.environ})
    if address is not None:
        os.environ["RAY_ADDRESS"] = address
    try:
        here = not ray_cluster.is_there()
        device = "cuda:0" if here and torch.cuda.is_available() else "cpu"
        if here:
            _require(resources, [{"CPU": count_cores(), "GPU": torch.cuda.device_count()}], "this machine")
        ray_cluster.connect(Plan(device=device, workers=count_cores() if here else 1))
        try:
            if not here:
                nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's
                _require(resources, [node["Resources"] for node in nodes if node["Alive"]], "the cluster")
            yield
        finally:
            ray_cluster.disconnect()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _require(resources: Resources, nodes: list[dict[str, float]], where: str) -> None:
    for name, kind, asked in (("cpus", "CPU", resources.cpus), ("gpus", "GPU", resources.gpus)):
        most = max((node.get(kind, 0) for node in nodes), default=0)
        if asked > most:
            raise InputError(
                f"resources.{name} is {asked:g}, but no node of {where} has more than {most:g}: a trial would wait "
                "forever; lower it, or give the --ray.address of a larger cluster"
            )
    if not any(node.get("CPU", 0) >= resources.cpus and node.get("GPU", 0) >= resources.gpus for node in nodes):
        raise InputError(
            f"no node of {where} has {resources.cpus:g} cores and {resources.gpus:g} GPUs at once; lower "
            "resources.cpus or resources.gpus"
        )


def require_shared_folder(path: str) -> None:
    """Checks that all nodes of the cluster see a folder, since trials write their results there.

    Raises:
        InputError: a node does not see the folder.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # Ray's
    if len(nodes) < 2:
        return
    look = ray.remote(num_cpus=0)(os.path.isdir)
    on = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    seen = ray.get([look.options(scheduling_strategy=strategy).remote(path) for strategy in on])
    blind = [node["NodeManagerAddress"] for node, sees in zip(nodes, seen, strict=True) if not sees]
    if blind:
        raise InputError(
            f"{path} does not exist on {', '.join(blind)}: a trial writes its directory where it runs; give a "
            "--study_dir on a file system that all nodes of the cluster share (with lit-cfl launch: a --remote_dir)"
        )
