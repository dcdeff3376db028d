"""Checks that a module can be trained and scored on the data, before anything is written."""

import copy
import re
import warnings
from contextlib import suppress
from math import isfinite

import torch
from lightning import LightningModule
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.optim import Optimizer

from lit_cfl.data import Examples, FederatedData
from lit_cfl.data.augment import AugmentFunction, require_augmentation
from lit_cfl.engines.base import Engine
from lit_cfl.engines.fit_request import CHECK
from lit_cfl.engines.module_state import copy_state, module_state, same_value
from lit_cfl.engines.task_notes import (
    note_idle_dropout,
    note_outputs,
    note_padding,
    note_repeated_dropout,
    note_schedulers,
)
from lit_cfl.engines.task_protocol import Batch, losses_of, outcomes_of
from lit_cfl.engines.token_inputs import takes_tokens
from lit_cfl.errors import DivergedError, InputError, count_noun, error_place, short_error
from lit_cfl.local_work import Budget, per_client
from lit_cfl.tasks.classification import Classification

_TOKENS = (
    "; the inputs are token ids: choose a net with an embedding (Sent140GRU, Sent140LSTM, FedGroupLSTM), or give the "
    "data word vectors (Sent140's option embeddings)"
)
_NO_TRAINER = "; scores are computed without a Trainer: use the Trainer only in training_step"
_FEW_OUTPUTS = "; the net has fewer outputs than there are labels: give its last layer num_labels outputs"
_REMEDIES = {
    "classes": "give numbers as floats, or set data.num_labels to 0, or take the task Classification",
    "multi-label": "take the task MultiLabel, or give one class for each example, such as y.argmax(1)",
    "numbers": "give classes as integers from 0, or take the task Regression, or one with labels = ('numbers',)",
    "none": "give labels, or take a task that needs none, with labels = ('none',), such as NextToken",
}
_MOVED = 0.01  # standard deviation of the changes to each weight
_SOME, _BLOCK = 8, 2**16  # numbers of examples: tried, and searched for labels at a time
_NAMED = 10  # maximum number of labels whose names a message lists


def require_trainable(engine: Engine, data: FederatedData) -> None:
    """Checks that examples can be scored, and that a client can be trained for one step.

    Raises:
        InputError: the net does not fit the data, the module returns losses or scores of the wrong kind, or the
            optimizer rejects its options.
    """
    _require_labels(engine, data.examples)
    again = engine.build(0)
    _require_same_build(engine.template, again)
    model = engine.initial(0)
    batch = engine.examples(data).batch(_one_of_each_label(data), engine.plan.dtype, engine.device)
    names = data.examples.label_names
    named = f" ({', '.join(names)})" if 0 < len(names) <= _NAMED else ""
    shapes = f"inputs of shape {tuple(batch[0].shape[1:])}, {data.examples.labels_in_words}{named}"
    try:
        _require_same_scores_again(engine, engine.module(model).eval(), batch)
    except InputError:
        raise
    except Exception as error:  # a user's module may raise anything; our own errors are re-raised
        # wrong shapes or arguments cause errors of these types
        if not _is_users(error, RuntimeError, IndexError, ValueError, TypeError):
            raise
        tokens = data.examples.vocabulary and data.examples.embeddings is None and not takes_tokens(engine.template)
        remedy = _TOKENS if tokens else _remedy(error, engine.module(model).eval(), batch)
        raised = f"{short_error(error)}{error_place(error)}"
        raise InputError(f"the net cannot take the data: {shapes} ({raised}){remedy}") from error
    _require_faithful_copy(engine, again, data.examples.batch(_one_of_each_label(data), torch.float32, "cpu"))
    _require_fixed_constants(engine, engine.module(model), batch)
    if data.examples.augment is not None:
        _require_augmentation(data.examples.augment, batch)
    local = engine.local
    _require_finite_rates(engine.module(model))
    note_schedulers(engine.module(model), local)
    note_idle_dropout(engine.template)
    note_padding(engine.template, data.examples.inputs)
    with engine.own_stream("evaluation"):  # a net may draw random numbers
        note_outputs(engine.module(model).eval(), batch)
        note_repeated_dropout(engine.module(model), batch)
    engine.require_variance(data.population, local.budget, per_client(local.epochs, data.population), data)
    largest = data.population[data.num_examples[data.population].argmax()][None]
    try:
        engine.at(0, data).fit(model[None], largest, purpose=CHECK, budget=Budget(1, "steps"))
    except DivergedError:
        pass  # the run reports the divergence, or leaves the client out
    except InputError:
        raise
    except Exception as error:  # a user's module may raise anything in training
        if not _is_users(error, RuntimeError, TypeError, MisconfigurationException):
            raise
        raise InputError(
            f"client {int(largest)} cannot be trained: {short_error(error)}{error_place(error)}"
        ) from error


def _remedy(error: Exception, module: LightningModule, batch: Batch) -> str:
    """Names the remedy of an error of the net, as the end of a message; empty if it is not known."""
    if "not attached to a `Trainer`" in str(error):
        return _NO_TRAINER
    if isinstance(error, IndexError) and re.search(r"Target \d+ is out of bounds", str(error)):
        return _FEW_OUTPUTS
    if sizes := re.search(r"mat1 and mat2 shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)", str(error)):
        return f"; a linear layer gets {sizes[1]} numbers from each example, but takes {sizes[2]}"
    if re.search(r"Given groups=\d+|Expected \dD .* input to conv", str(error)) and batch[0].ndim == 2:
        wide = batch[0].shape[1]
        return f"; a batch of these inputs is [n, {wide}], and Conv1d takes [n, 1, {wide}]: inputs.unsqueeze(1)"
    return _describe_wrong_shape(module, batch)


def _describe_wrong_shape(module: LightningModule, batch: Batch) -> str:
    """Explains that a net returns outputs of a wrong shape; empty if it does not, or fails itself."""
    with suppress(Exception), torch.no_grad():  # what fails here has been reported
        outputs, number = module(batch[0]), len(batch[1])
        if isinstance(outputs, Tensor) and outputs.ndim and len(outputs) != number:
            return (
                f"; the net returned {count_noun(len(outputs), 'output')} for {count_noun(number, 'input')}, so one of "
                "its reshapes joins or divides examples: give it the sizes of one input"
            )
        if isinstance(outputs, Tensor) and isinstance(module, Classification) and outputs.ndim != 2:
            return (
                f"; the net returned the shape {tuple(outputs.shape)} for {count_noun(number, 'input')}: give it an "
                "output for each label, [n, num_labels]"
            )
    return ""


def _require_same_build(first: LightningModule, second: LightningModule) -> None:
    """Checks that a task builds the same module twice from the same seed.

    Raises:
        InputError: the modules differ; the message says in what.
    """
    one, other = module_state(first), module_state(second)
    for name, value in one.items():
        if isinstance(value, Tensor) and not (name in other and same_value(value, other[name])):
            raise InputError(
                f"{name} of {type(first).__name__} differs when it is made again from the same seed, so no other "
                "process could build this module; draw from the generators of torch, numpy or random, which are "
                "seeded, and not from one without a seed (numpy.random.default_rng()), and set the values that "
                "torch.empty leaves undefined"
            )


def _require_faithful_copy(engine: Engine, itself: LightningModule, batch: Batch) -> None:
    """Checks that a copy of the module computes the same as the module itself when both get new weights.

    Args:
        itself: The task's module, built once more; it is changed.
        batch: Examples on the CPU, floats as float32.

    Raises:
        InputError: a copy has different losses or gradients.
    """
    copied = copy.deepcopy(engine.template)
    rng = torch.Generator().manual_seed(0)
    row = engine.layout.read(itself, torch.float32)
    columns = engine.layout.num_parameters
    row[:columns] += _MOVED * torch.randn(columns, generator=rng, dtype=torch.float32)
    try:
        expected = _loss_and_gradients(engine, row, itself, batch)
    except Exception:  # such as a net without float32: training will report what is wrong
        return
    try:
        found = _loss_and_gradients(engine, row, copied, batch)
        faithful = all(map(_same_tensor, expected, found))
    except Exception:  # the copy may use layers of the original, which have another dtype
        faithful = False
    if not faithful:
        raise InputError(
            f"a copy of {type(itself).__name__} computes different values than the module itself, but every client "
            "trains a copy; if a function in it (a lambda, a hook) refers to the original's layers, use a method of "
            "the module instead, or the layer that the hook receives"
        )


def _same_tensor(expected: Tensor | None, found: Tensor | None) -> bool:
    if expected is None or found is None:
        return expected is found
    return torch.allclose(expected, found, equal_nan=True)


def _loss_and_gradients(
    engine: Engine, row: Tensor, module: LightningModule, batch: Batch
) -> tuple[Tensor | None, ...]:
    module = module.cpu().float().eval()
    engine.layout.write(row, module)
    parameters = [module.get_parameter(slot.name) for slot in engine.layout.slots if not slot.is_buffer]
    with warnings.catch_warnings(), engine.own_stream("copy"):
        warnings.simplefilter("ignore")
        loss = losses_of(module, batch).mean()
        return loss.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True)


def _require_same_scores_again(engine: Engine, module: LightningModule, batch: Batch) -> None:
    """Raises InputError if a second scoring of the same examples gives other results."""
    found, states = [], []
    for _ in range(2):
        with engine.own_stream("evaluation"):
            found.append(outcomes_of(module, batch))
        states.append(copy_state(module))
    if not torch.allclose(found[0], found[1], equal_nan=True):
        changed = next((name for name in states[1] if not same_value(states[0].get(name), states[1][name])), None)
        raise InputError(
            f"{type(module).__name__} scores the same examples differently the second "
            f"time{f', because {changed} changes' if changed else ''}: scores would depend on what was scored before; "
            "let the module change only in training (if self.training)"
        )


def _require_augmentation(augment: AugmentFunction, batch: Batch) -> None:
    """Tries the augmentation of training examples on a batch. Raises InputError if it fails."""
    keys = torch.arange(len(batch[1]), device=batch[0].device) << 32
    try:
        require_augmentation(augment, batch, keys)
    except InputError:
        raise
    except Exception as error:  # a user's function may raise anything
        if not _is_users(error, RuntimeError, TypeError, IndexError, ValueError):
            raise
        raise InputError(
            f"data.augment cannot change the examples: {short_error(error)}{error_place(error)}"
        ) from error


def _require_fixed_constants(engine: Engine, module: LightningModule, batch: Batch) -> None:
    """Raises InputError if a buffer outside the model's row starts non-finite and changes in training."""
    in_row = {slot.name for slot in engine.layout.slots}
    outside = {name: b.clone() for name, b in module.named_buffers() if b.is_floating_point() and name not in in_row}
    unset = [name for name, buffer in outside.items() if not buffer.isfinite().all()]
    if not unset:
        return
    with suppress(Exception), engine.own_stream("constants"), torch.no_grad():  # training will report what is wrong
        losses_of(module.train(), batch)
    for name in unset:
        if not same_value(module.get_buffer(name), outside[name]):
            raise InputError(
                f"the buffer {name} starts with a value that is not finite, and training changes it; no mean over "
                "clients can start from that: give it a finite value, such as 0, in __init__"
            )


def _require_finite_rates(module: LightningModule) -> None:
    """Raises InputError if a learning rate is NaN or infinite, which would look like divergence."""
    optimizer = None
    with suppress(Exception):  # training will report what is wrong
        optimizer = module.configure_optimizers()
    for group in optimizer.param_groups if isinstance(optimizer, Optimizer) else ():
        if not isfinite(rate := float(group.get("lr", 0.0))):
            raise InputError(f"the learning rate is {rate}; give a number of 0 or more")


def _is_users(error: Exception, *kinds: type[Exception]) -> bool:
    """Returns whether an error is of one of these classes, or was raised in the user's code."""
    return isinstance(error, kinds) or bool(error_place(error))


def _require_labels(engine: Engine, examples: Examples) -> None:
    task, kind = engine.template, examples.label_kind
    taken = getattr(task, "labels", ("classes",))
    taken = (taken,) if isinstance(taken, str) else taken
    if not isinstance(taken, tuple | list) or not taken or any(one not in list(_REMEDIES) for one in taken):
        raise InputError(
            f"{type(task).__name__}.labels is {taken!r:.60}, but this attribute names the kinds of labels that the "
            f"task takes, such as ('classes',), out of {', '.join(_REMEDIES)}; give the attribute another name"
        )
    if kind not in taken:
        held = {
            "classes": "classes",
            "multi-label": f"{examples.num_outputs} for each example",
            "numbers": f"numbers ({examples.labels.dtype})",
            "none": "missing",
        }[kind]
        remedy = _REMEDIES[kind]
        if kind == "multi-label" and "numbers" in taken and examples.num_outputs == 1:
            remedy = "give one number for each example, [N] in place of [N, 1], such as y[:, 0]"
        wanted = " or ".join("several for each example" if one == "multi-label" else one for one in taken)
        raise InputError(
            f"{type(task).__name__} takes labels that are {wanted}, but those of these data are {held}: {remedy}"
        )


def _one_of_each_label(data: FederatedData) -> Tensor:
    if data.examples.label_kind != "classes":
        return data.train.entries[:_SOME]
    found: dict[int, Tensor] = {}  # the first example of each label
    for some in data.train.entries.split(_BLOCK):
        labels = data.examples.targets(some).cpu()
        first = torch.full((data.examples.num_labels,), len(some)).scatter_reduce(
            0, labels, torch.arange(len(some)), "amin"
        )
        new = [label for label in (first < len(some)).nonzero().flatten().tolist() if label not in found]
        found |= {label: some[first[label]] for label in new}
    return torch.stack([found[label] for label in sorted(found)])
