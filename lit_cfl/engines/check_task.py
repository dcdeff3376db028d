"""Checks that a module can be trained and scored on the data, before anything is written."""

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from lit_cfl.data import Examples, FederatedData
from lit_cfl.engines.base import Engine
from lit_cfl.engines.check_module import in_short
from lit_cfl.engines.local_training import CHECK
from lit_cfl.engines.task_protocol import outcomes_of
from lit_cfl.engines.token_inputs import takes_tokens
from lit_cfl.errors import DivergedError, InputError
from lit_cfl.local_work import Budget, per_client

_TOKENS = (
    "; the inputs are token ids: choose a net with an embedding (Sent140GRU, Sent140LSTM, FedGroupLSTM), or give the "
    "data word vectors (Sent140's option embeddings)"
)
_REMEDIES = {
    "classes": "give numbers as floats, or take the task Classification",
    "numbers": "give classes as integers from 0, or take the task Regression, or one with labels = ('numbers',)",
    "none": "give labels, or take a task that needs none, with labels = ('none',), such as NextToken",
}
_SOME = 8  # examples


def require_trainable(engine: Engine, data: FederatedData) -> None:
    """Scores an example of every label, and trains one client for one step, both on a throw-away module.

    Raises:
        InputError: the net does not fit the data, what evaluation asks of the module is of the wrong kind, or the
            optimizer refuses its options.
    """
    _require_labels(engine, data.examples)
    model = engine.initial(0)
    batch = engine.examples(data).batch(_one_of_each_label(data), engine.plan.dtype, engine.device)
    shapes = f"inputs of shape {tuple(batch[0].shape[1:])}, {_in_words(data.examples)}"
    try:
        outcomes_of(engine.module(model).eval(), batch)
    except InputError:
        raise  # a ValueError, too
    except (RuntimeError, IndexError, ValueError) as error:  # what torch raises for shapes and labels that do not fit
        tokens = data.examples.vocabulary and data.examples.embeddings is None and not takes_tokens(engine.template)
        remedy = _TOKENS if tokens else ""
        raise InputError(f"the net cannot take the data: {shapes} ({in_short(error)}){remedy}") from error
    local = engine.local
    engine.require_variance(data.population, local.budget, per_client(local.epochs, data.population), data)
    largest = data.population[data.num_examples[data.population].argmax()][None]
    try:
        engine.at(0, data).fit(model[None], largest, purpose=CHECK, budget=Budget(1, "steps"))
    except DivergedError:
        pass  # the run itself reports it, or leaves the client out
    except (RuntimeError, MisconfigurationException, TypeError) as error:
        raise InputError(f"client {int(largest)} cannot be trained: {in_short(error)}") from error


def _require_labels(engine: Engine, examples: Examples) -> None:
    task, kind = engine.template, examples.label_kind
    taken = getattr(task, "labels", ("classes",))
    if kind not in taken:
        held = {"classes": "classes", "numbers": f"numbers ({examples.labels.dtype})", "none": "not there"}[kind]
        raise InputError(
            f"{type(task).__name__} takes labels that are {' or '.join(taken)}, but those of these data are {held}: "
            f"{_REMEDIES[kind]}"
        )


def _one_of_each_label(data: FederatedData) -> Tensor:
    if data.examples.label_kind != "classes":
        return data.train.entries[:_SOME]
    labels = data.examples.targets(data.train.entries)
    order = labels.argsort(stable=True)
    first = torch.cat([torch.ones(1, dtype=torch.bool), labels[order].diff() > 0])
    return data.train.entries[order[first].cpu()]


def _in_words(examples: Examples) -> str:
    kinds = {"classes": f"{examples.num_labels} labels", "numbers": "labels that are numbers", "none": "no labels"}
    return kinds[examples.label_kind]
