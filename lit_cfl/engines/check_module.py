"""Checks that a module can be copied for clients, and finds its optimizer and schedulers."""

import copy
from collections.abc import Mapping

from lightning import LightningModule
from torch import nn
from torch.jit import ScriptModule
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler

from lit_cfl.engines.task_protocol import require_losses
from lit_cfl.engines.torch_internals import has_gradient_hooks
from lit_cfl.errors import InputError, short_error
from lit_cfl.parameters import copy_sharing_frozen

_REGISTERED = ("_modules", "_parameters", "_buffers")  # attributes in which PyTorch itself keeps the parts of a module
_COPIES = "every client trains a copy of the module"


def require_module(module: LightningModule) -> None:
    """Checks the requirements of every engine: a module has `losses`, and copies of it are complete.

    Raises:
        InputError: the module lacks `losses` or `outcomes`, has layers without weights or hooks that copies lack, or
            cannot be copied.
    """
    require_losses(module)
    _require_registered(module)
    _require_plain_layers(module)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and has_gradient_hooks(parameter):
            raise InputError(
                f"the parameter {name} has a hook on its gradient (register_hook), which is not copied with it, but "
                f"{_COPIES}; change the gradient in the LightningModule's on_before_optimizer_step, or detach in "
                "forward what must not train"
            )
    _require_copy(module)


def _require_registered(module: LightningModule) -> None:
    """Rejects trainable layers in plain lists and dictionaries, which PyTorch does not count as part of a module."""
    registered = {id(parameter) for parameter in module.parameters()}
    for name, layer in module.named_modules():
        for attribute, value in vars(layer).items():
            if not isinstance(value, list | tuple | dict) or attribute in _REGISTERED:
                continue
            if any(tensor.requires_grad and id(tensor) not in registered for tensor in _parameters_of(value)):
                parts = value.values() if isinstance(value, dict) else value
                kind = "Parameter" if any(isinstance(part, nn.Parameter) for part in parts) else "Module"
                remedy = f"nn.{kind}{'Dict' if isinstance(value, dict) else 'List'}"
                path = f"{name}.{attribute}" if name else attribute
                raise InputError(
                    f"{path} is a plain {type(value).__name__}, so that its parameters are not part of the model and "
                    f"would be neither trained nor sent; make it an {remedy}"
                )


def _parameters_of(part: object, depth: int = 3) -> list[nn.Parameter]:
    """Finds the parameters in an object and in its lists, down to a depth, as a list may contain itself."""
    if isinstance(part, nn.Module):
        return list(part.parameters())
    if isinstance(part, list | tuple | dict) and depth:
        parts = part.values() if isinstance(part, dict) else part
        return [tensor for one in parts for tensor in _parameters_of(one, depth - 1)]
    return [part] if isinstance(part, nn.Parameter) else []


def _require_plain_layers(module: LightningModule) -> None:
    """Rejects layers whose copies cannot be converted, or that have no weights yet."""
    for name, layer in module.named_modules():
        if isinstance(layer, ScriptModule):
            raise InputError(
                f"{name} ({type(layer).__name__}) is compiled by torch.jit, which is not supported, because "
                f"{_COPIES}; give the net as it is before torch.jit.script or torch.jit.trace"
            )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise InputError(
                f"{_owner_of(name, module)} has no weights before its first input, so there is no model to start "
                "from; give the layer its sizes (nn.Linear(64, 10) for nn.LazyLinear(10)), or run the net on one "
                "input in its __init__"
            )


def schedulers_in(configured: object) -> list[LRScheduler]:
    """Finds the learning rate schedulers in the return value of `configure_optimizers`."""
    if isinstance(configured, LRScheduler):
        return [configured]
    parts = list(configured.values()) if isinstance(configured, Mapping) else configured
    return [found for part in parts for found in schedulers_in(part)] if isinstance(parts, (list, tuple)) else []


def _require_copy(module: LightningModule) -> None:
    try:
        copy_sharing_frozen(module)
    except Exception as error:  # a user's layer may raise anything
        name, layer = _first_uncopied(module)
        remedy = "keep no open files in it, and compute what depends on parameters in forward"
        if hasattr(layer, "weight_g"):
            remedy = "use torch.nn.utils.parametrizations.weight_norm instead of nn.utils.weight_norm"
        raise InputError(
            f"{name} ({type(layer).__name__}) cannot be copied, but {_COPIES}; {remedy} ({short_error(error)})"
        ) from error


def _first_uncopied(module: nn.Module) -> tuple[str, nn.Module]:
    """Finds the innermost layer that cannot be copied, with its name."""
    for name, layer in reversed(list(module.named_modules())):
        try:
            copy.deepcopy(layer)
        except Exception:  # the search repeats the error for each layer
            return name or "the module", layer
    return "the module", module


def _owner_of(tensor: str, module: nn.Module) -> str:
    layer = tensor.rpartition(".")[0]
    return f"{layer or 'the module'} ({type(module.get_submodule(layer)).__name__})"
