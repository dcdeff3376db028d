"""Notes on a task that trains, but probably not as its author meant."""

import warnings
from collections import Counter
from contextlib import suppress
from math import log
from operator import itemgetter

import torch
from lightning import LightningModule
from torch import Tensor, nn

from lit_cfl.engines.check_module import schedulers_in
from lit_cfl.engines.dropout import KeyedDropout
from lit_cfl.engines.task_protocol import Batch, losses_of
from lit_cfl.engines.training_options import LocalTraining
from lit_cfl.errors import Notice, count_noun
from lit_cfl.tasks.classification import Classification
from lit_cfl.tasks.next_token import NextToken

_SEQUENCES = 2**12  # maximum number of sequences that are searched for padding
_APART = 1e-2  # minimum difference of outputs that is not a rounding error, as a share of the largest output
_ROUNDING = 1e-3  # maximum difference from 1 of a sum of probabilities, also in half precision


def note_schedulers(module: LightningModule, local: LocalTraining) -> None:
    """Warns that a scheduler in the module starts again in each fit, so that it has no effect over rounds."""
    with suppress(Exception):  # training will report what is wrong
        for scheduler in schedulers_in(module.configure_optimizers()):
            warnings.warn(
                f"the scheduler {type(scheduler).__name__} starts again in every fit of a client, which has "
                f"{count_noun(local.epochs, 'epoch')}: each round starts with the same learning rate. For rates that "
                "change over rounds, return the optimizer alone, and give the scheduler as local.lr_schedule",
                Notice,
                stacklevel=3,
            )


def note_idle_dropout(module: LightningModule) -> None:
    """Warns of a trained part in evaluation mode whose dropout drops nothing, such as a net of `from_pretrained`."""
    for name, part in module.named_modules():
        drops = any(isinstance(layer, KeyedDropout | nn.Dropout) and layer.p > 0 for layer in part.modules())
        if drops and not part.training and any(parameter.requires_grad for parameter in part.parameters()):
            warnings.warn(
                f"{name or 'the module'} ({type(part).__name__}) is in evaluation mode, also while it trains, so that "
                "its dropout drops nothing; pretrained nets come so: call .train() where the task is built, unless "
                "this is meant",
                Notice,
                stacklevel=3,
            )
            return


def note_repeated_dropout(module: LightningModule, batch: Batch) -> None:
    """Warns of a dropout layer that is called several times in a forward pass, since its mask is the same each time.

    Args:
        module: Copy of the task's module; it gets hooks.
        batch: Inputs and labels of some examples.
    """
    called = Counter[str]()
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, KeyedDropout)}
    if not layers:
        return
    for name, layer in layers.items():
        if layer.training and layer.p > 0:
            layer.register_forward_hook(lambda *_, name=name: called.update([name]))
    with suppress(Exception), torch.no_grad():  # training will report what is wrong
        losses_of(module, batch)
    name, times = max(called.items(), key=itemgetter(1), default=("", 0))
    if times > 1:
        warnings.warn(
            f"{name} (nn.Dropout) is called {times} times in a forward pass, and drops the same units each time: give "
            "each place of the net its own nn.Dropout, or take functional.dropout(..., training=self.training)",
            Notice,
            stacklevel=3,
        )


def note_padding(task: LightningModule, inputs: Tensor) -> None:
    """Warns if the padding id also occurs between other tokens, where it would be neither predicted nor scored."""
    if not isinstance(task, NextToken) or task.padding is None or inputs.ndim != 2:
        return
    others = inputs[:_SEQUENCES] != task.padding
    between = others.cumsum(1).bool() & others.flip(1).cumsum(1).flip(1).bool() & ~others
    if between.any():
        row, position = between.nonzero()[0].tolist()
        warnings.warn(
            f"token {task.padding} stands between other tokens (sequence {row}, token {position}), but task.padding "
            f"is {task.padding}: it is neither predicted nor scored. If it is a real token, set task.padding to null",
            Notice,
            stacklevel=3,
        )


def note_outputs(task: LightningModule, batch: Batch) -> None:
    """Warns of outputs in evaluation mode that are random, depend on the rest of the batch, or are probabilities.

    The loss would take the softmax of probabilities.

    Args:
        task: The task's module in evaluation mode.
        batch: Inputs and labels of some examples.
    """
    outputs = again = alike = None
    with suppress(Exception), torch.no_grad():  # a subclass may train without its forward
        outputs, again = task(batch[0]), task(batch[0])
        alike = task(batch[0][:1].expand_as(batch[0]).contiguous())  # the first example instead of all others, too
    if not isinstance(outputs, Tensor) or not isinstance(again, Tensor):
        return
    if not torch.equal(outputs.nan_to_num(), again.nan_to_num()):
        warnings.warn(
            "the outputs of the net differ from call to call in evaluation mode, too, so that scores are those of "
            "random outputs; use nn.Dropout, or functional.dropout(..., training=self.training)",
            Notice,
            stacklevel=3,
        )
    elif (
        isinstance(alike, Tensor)
        and alike.shape == outputs.shape != ()
        and (alike[0] - outputs[0]).abs().max() > _APART * outputs.abs().max()
    ):
        warnings.warn(
            "the output of the net for an example depends on the other examples of its batch in evaluation mode, too, "
            "so that scores depend on which examples are scored together; the reason may be a BatchNorm with "
            "track_running_stats=False, or a softmax or mean over dimension 0",
            Notice,
            stacklevel=3,
        )
    if not isinstance(task, Classification) or outputs.ndim != 2:
        return
    if outputs.min() >= 0 and (outputs.sum(-1) - 1).abs().max() < _ROUNDING:
        warnings.warn(
            "the net returns probabilities (its outputs for an example add up to 1), but Classification takes the "
            "softmax itself, so that training is slow: leave out the net's last softmax",
            Notice,
            stacklevel=3,
        )


def note_loss_above_guessing(task: LightningModule, loss: float | None, num_labels: int) -> None:
    """Warns if the training loss of a run's last round is twice that of equal probabilities for all labels.

    Args:
        task: The task's module.
        loss: Mean training loss of the round; None if no client trained.
        num_labels: Number of labels; 0 = the labels are numbers or absent.
    """
    if not isinstance(task, Classification) or type(task).losses is not Classification.losses or task.penalised_layers:
        return
    if loss is not None and num_labels > 1 and loss > 2 * log(num_labels):
        warnings.warn(
            f"the training loss of the last round is {loss:.3g}, but equal probabilities for all {num_labels} labels "
            f"have {log(num_labels):.3g}: training diverges; lower the learning rate (task.optimizer.lr)",
            Notice,
            stacklevel=3,
        )
