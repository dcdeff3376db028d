"""Finds what a LightningModule does beyond `losses` and one plain optimizer: then only `trainer` can fit it."""

from lightning import LightningModule
from torch.optim import SGD, Adam, AdamW, Optimizer

from lit_cfl.errors import InputError

_FAST_OPTIMIZERS = (SGD, Adam, AdamW)
_STEP_HOOKS = (
    "backward",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "optimizer_step",
    "optimizer_zero_grad",
    "transfer_batch_to_device",
)


def needs_trainer(module: LightningModule) -> list[str]:
    """Lists why only `trainer` can fit this module; empty if a fast engine could.

    Fast engines train from `losses(batch)` and the optimizer of `configure_optimizers` alone, so any other training
    hook, a scheduler, several optimizers or optimisation by hand would be lost on them.
    """
    names = [name for name in dir(LightningModule) if _is_training_hook(name)]
    reasons = [f"hook {name}" for name in names if getattr(type(module), name) is not getattr(LightningModule, name)]
    if not module.automatic_optimization:
        reasons.append("optimisation by hand")
    try:
        configured = module.configure_optimizers()
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"configure_optimizers of {type(module).__name__} failed: {error}; mend its options"
        ) from error
    if not isinstance(configured, Optimizer):
        reasons.append("configure_optimizers gives more than one plain optimizer")
    elif type(configured) not in _FAST_OPTIMIZERS:
        reasons.append(f"optimizer {type(configured).__name__}")
    return reasons


def _is_training_hook(name: str) -> bool:
    others = ("validation", "test", "predict", "checkpoint", "gpu")
    return name in _STEP_HOOKS or (name.startswith("on_") and not any(other in name for other in others))
