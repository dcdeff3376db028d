"""Every way to train clients gives the result of lightning.Trainer, for every feature of local training.

A row of `CASES` is a feature, a column of `WAYS` a way of training. A new way is a column; a new optimizer, layer, task
or option is a row. Each cell checks models, losses, gradients and scores, and that other clients change none of them.
What all ways share, the Trainer's too, is checked against a few lines of plain PyTorch, and by nets whose trained
weights say which examples a step had, and which units its dropout kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from inspect import signature
from itertools import combinations
from math import inf, nan
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from inside_training import CENTER, MIXING, ROUND, START, Case, Clients, find_refusal, set_form, why_absent
from lightning import LightningModule
from ragged import clients_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import ExponentialLR
from torch.testing import assert_close

from lit_cfl.data import Augment, Examples, FederatedData
from lit_cfl.errors import InputError
from lit_cfl.experiment import LocalTraining
from lit_cfl.keyed_random import draw_keyed_uniform
from lit_cfl.local_work import Budget, LocalWork
from lit_cfl.nets import MCLR, MLP, MNISTCNN
from lit_cfl.seeds import generator
from lit_cfl.tasks import Classification, MultiLabel, NextToken, Regression

# clients without data are in front of others, so that a client's position differs from its place among those who train
SIZES = (0, 3, 17, 0, 25, 9, 20)
SHAPE = [1, 9, 9]  # 81 inputs: the compiled steps take 64 in a tile, then 16, and the last one with zeros
LOCAL = LocalTraining(epochs=2, batch_size=10)
PLAIN = partial(SGD, lr=0.1)


def draw_labels(count: int, classes: int = 10) -> Tensor:
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(1))


def images(sizes: Sequence[int] = SIZES, shape: Sequence[int] = SHAPE, **options: Any) -> FederatedData:
    total = sum(sizes)
    drawn = torch.randint(0, 255, (total, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return clients_of(Examples(drawn, draw_labels(total), 10, **{"scale": 1 / 255} | options), sizes)


def numbers() -> FederatedData:
    data = images()
    return replace(data, examples=replace(data.examples, labels=data.examples.labels / 10, num_labels=0))


def several() -> FederatedData:
    data = images()
    labels = data.examples.labels[:, None] % torch.tensor([2, 3, 5]) == 0
    return replace(data, examples=replace(data.examples, labels=labels, num_labels=0))


def floats(spoilt: int | None = None) -> FederatedData:
    """Makes clients with inputs of type float, of which one example has a pixel that is no number."""
    inputs = torch.rand(sum(SIZES), *SHAPE, generator=torch.Generator().manual_seed(3))
    if spoilt is not None:
        inputs[spoilt, 0, 8, 8] = nan
    return clients_of(Examples(inputs, draw_labels(len(inputs)), 10), SIZES)


def large() -> FederatedData:
    """Makes a client with more examples than are computed at once, and in which a part's mean is not the whole's."""
    return images((0, 5, 1100), [2])


def tokens(classes: int = 2) -> FederatedData:
    inputs = torch.randint(0, 7, (sum(SIZES), 5), generator=torch.Generator().manual_seed(2))
    inputs[::3, 3:] = 0  # padding
    return clients_of(Examples(inputs, draw_labels(len(inputs), classes), classes, vocabulary=7), SIZES)


def brighten(batch: tuple[Tensor, Tensor], keys: Tensor) -> tuple[Tensor, Tensor]:
    """Augments as a user might: by a random brightness, and another label for some examples."""
    draws = draw_keyed_uniform(keys, 2)
    factors = draws[:, 0].to(batch[0].dtype).view(-1, 1, 1, 1)
    return batch[0] * (0.5 + factors), torch.where(draws[:, 1] < 0.1, (batch[1] + 1) % 10, batch[1])


def shade(batch: tuple[Tensor, Tensor], keys: Tensor) -> tuple[Tensor, Tensor]:
    """Augments without a draw: by a brightness that depends on the label, and by another label."""
    return batch[0] * (1 + batch[1].view(-1, 1, 1, 1) / 10), (batch[1] + 1) % 10


def mlp() -> nn.Module:
    return MLP(21, SHAPE, 10)


def chain_of(*parts: nn.Module | int) -> nn.Module:
    """Makes a chain of linear layers of these sizes, with other layers between them."""
    layers, width = [nn.Flatten()], 81
    for part in parts:
        layers.append(nn.Linear(width, part) if isinstance(part, int) else part)
        width = part if isinstance(part, int) else width
    return nn.Sequential(*layers)


def unbiased() -> nn.Module:
    net = chain_of(16, nn.ReLU(), 12, nn.ReLU(), 10)
    net[3] = nn.Linear(16, 12, bias=False)
    return net


def freeze(*names: str) -> nn.Module:
    net = mlp()
    for name in names:
        net.get_parameter(name).requires_grad_(False)
    return net


def spare() -> nn.Module:
    """Makes a net with a parameter that takes no part in the losses: only a proximal term moves it."""
    net = mlp()
    net.spare = nn.Parameter(torch.ones(3))
    return net


class Normalised(nn.Module):
    """Net with BatchNorm over pixels and over units, the second of which a user has put into evaluation mode."""

    def __init__(self, resting: bool = False, **options: Any) -> None:
        super().__init__()
        self.conv, self.bn1 = nn.Conv2d(1, 3, 3, 2, bias=False), nn.BatchNorm2d(3, **options)
        self.fc1, self.bn2, self.fc2 = nn.Linear(48, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 10)
        if resting:
            self.bn2.eval()
            self.bn2.running_mean.fill_(0.3)
            self.bn2.running_var.fill_(2.0)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.fc1(self.bn1(self.conv(inputs)).relu().flatten(1))
        return self.fc2(self.bn2(hidden).relu())


def places() -> nn.Module:
    """Makes a net whose BatchNorm has several places of each image."""
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(147, 10))


class Attention(nn.Module):
    """Net with a mask of -inf, a temperature without axes, a layer that is used twice, and two biases in a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(9, 9), nn.Linear(81, 10)
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("mask", torch.triu(torch.full((9, 9), -inf), 1))
        self.one, self.two = nn.Parameter(torch.rand(10)), nn.Parameter(torch.rand(10))

    def forward(self, inputs: Tensor) -> Tensor:
        rows = self.mix(self.mix(inputs.flatten(1, 2)).tanh())
        shares = (rows @ rows.mT / self.temperature + self.mask).softmax(-1)
        return (self.one + self.two) + self.head((shares @ rows).flatten(1))


class Reader(nn.Module):
    """User's net of an embedding with a padding row, a recurrent layer and a linear layer."""

    def __init__(self, kind: type[nn.RNNBase], outputs: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4, padding_idx=0)
        self.rnn, self.out = kind(4, 3, batch_first=True), nn.Linear(3, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.rnn(self.embedding(tokens))[0].mean(1))


class Own(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(81, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc(inputs.flatten(1))

    def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1], reduction="none", label_smoothing=0.1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.losses(batch).mean()

    def outcomes(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.losses(batch), self(batch[0]).argmax(1) == batch[1]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return SGD(self.parameters(), lr=0.1)


class OwnStep(Own):
    """User's module that trains on more than its losses."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.losses(batch).mean() + 0.1 * self.fc.weight.square().sum()


class Lenient(Classification):
    """User's task whose reported losses are not those that it trains."""

    def outcomes(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        outputs = self(batch[0])
        return cross_entropy(outputs, batch[1], reduction="none") / 2, outputs.argmax(1) == batch[1]


def by_kind(
    parameters: Any, kind: Any = SGD, rates: Any = (0.1, 0.3), decays: Any = (0.02, 0.01), **more: Any
) -> torch.optim.Optimizer:
    """Makes an optimizer with a group for kernels and one for the other parameters."""
    found = list(parameters)
    parts = [p for p in found if p.dim() > 1], [p for p in found if p.dim() <= 1]
    groups = zip(parts, rates, decays, strict=True)
    return kind([{"params": part, "lr": rate, "weight_decay": decay} for part, rate, decay in groups], **more)


def row(net: Callable[[], nn.Module] = mlp, optimizer: Any = PLAIN, local: LocalTraining = LOCAL, **more: Any) -> Case:
    """Makes a row of a classification; arguments without a name here are those of `LocalWork.fit`."""
    data = more.pop("data", images)
    return Case(lambda: Classification(net(), optimizer), data, local, more)


def task(make: Callable[[], LightningModule], data: Callable[[], FederatedData] = images, **more: Any) -> Case:
    return Case(make, data, more.pop("local", LOCAL), more)


def optimized(kind: Any, **options: Any) -> Case:
    """Makes a row of an optimizer, with a proximal term and clipping, which in some clients and steps takes effect."""
    optimizer = partial(kind, **options) if options else kind
    return row(optimizer=optimizer, local=replace(LOCAL, gradient_clip=1.0), prox=0.3)


def weigh(clients: Tensor) -> Tensor:
    """Gives each example a weight that depends on its client and its number."""
    return torch.cat([torch.linspace(0, 2, 25)[: SIZES[k]].roll(k) for k in clients.tolist()])


def weigh_many(clients: Tensor) -> Tensor:
    return torch.cat([torch.linspace(0, 2, (0, 5, 1100)[k]) for k in clients.tolist()])


def lengths(*of_clients: int, unit: Literal["epochs", "steps"] = "epochs", batch_size: Any = None) -> Any:
    return lambda clients: Budget(torch.tensor(of_clients)[clients], unit, batch_size)


FULL, FOURS, TWO = replace(LOCAL, batch_size="full"), replace(LOCAL, batch_size=4), Budget(2, "steps")
HALVED = partial(ExponentialLR, gamma=0.5)
EACH = lengths(3, 1, 2, 2, 0, 3, 1)

# Rows that plain PyTorch trains, too: the Trainer and what all ways share must give the same.
BY_HAND: dict[str, Case] = {
    "full batches": row(local=FULL),
    "own start, centre and length": row(optimizer=by_kind, local=FULL, prox=0.3, budget=EACH),
    "equal rates, unequal decays": row(optimizer=partial(by_kind, rates=(0.1, 0.1), decays=(0.2, 0.0)), local=FULL),
    "equal decays, unequal rates": row(optimizer=partial(by_kind, decays=(0.1, 0.1)), local=FULL),
    "full batches of a fit": row(budget=Budget(3, "steps", "full")),
    "weights": row(local=FULL, weights=weigh, prox=0.1),
    "weights and penalty": task(lambda: Classification(mlp(), PLAIN, 0.05), local=FULL, weights=weigh),
    "penalty of a layer": task(lambda: Classification(mlp(), PLAIN, 0.05, "fc2"), local=FULL),
    "clipping and a proximal term": row(local=replace(FULL, gradient_clip=0.5), prox=0.5, budget=EACH),
    "rates over rounds": row(optimizer=by_kind, local=replace(FULL, lr_schedule=HALVED)),
    "maximize": row(optimizer=partial(SGD, lr=0.05, maximize=True), local=FULL),
    "frozen weight and bias": row(lambda: freeze("fc1.weight", "fc2.bias"), by_kind, FULL, prox=0.3),
    "an augmentation": row(data=partial(images, augment=shade), weights=weigh),
    "adam, full batches": row(optimizer=partial(Adam, lr=0.01, weight_decay=0.01), local=FULL, budget=EACH),
}

CASES: dict[str, Case] = BY_HAND | {
    # nets
    "linear": row(lambda: MCLR(SHAPE, 10), prox=0.3),
    "mlp": row(budget=EACH, prox=0.3),
    "no bias": row(unbiased, by_kind),
    "no activation": row(lambda: chain_of(7, 10)),
    "activation at the end": row(lambda: chain_of(10, nn.ReLU())),
    "activation in front": row(lambda: chain_of(nn.ReLU(), 10), data=partial(images, offset=90.0)),
    "tanh": row(lambda: chain_of(9, nn.Tanh(), 10)),
    "sigmoid and gelu": row(lambda: chain_of(9, nn.Sigmoid(), 8, nn.GELU(), 10)),
    "tanh's gelu": row(lambda: chain_of(9, nn.GELU("tanh"), 10)),
    "two dropouts": row(lambda: chain_of(nn.Dropout(0.2), 14, nn.ReLU(), nn.Dropout(0.4), 10), by_kind),
    "cnn with dropout": row(lambda: nn.Sequential(MNISTCNN([1, 9, 9], 12), nn.Dropout(0.4), nn.Linear(12, 10))),
    "strides": row(lambda: nn.Sequential(nn.Conv2d(1, 2, 3, (1, 2)), nn.ReLU(), nn.Flatten(), nn.Linear(56, 10))),
    "batch norm": row(Normalised, partial(Adam, lr=0.01), prox=0.1),
    "batch norm of equal batches": row(Normalised, data=partial(images, (0, 20, 10, 0, 30))),
    "batch norm of a lone image's places": row(places, data=partial(images, (0, 9, 13)), local=FOURS),
    "batch norm until an example is alone": row(Normalised, data=partial(images, (0, 9, 13)), local=FOURS, budget=TWO),
    "batch norm that keeps its statistics": row(partial(Normalised, resting=True, momentum=0.3)),
    "batch norm without statistics": row(partial(Normalised, track_running_stats=False, affine=False)),
    "layer norm": row(lambda: chain_of(nn.LayerNorm(81), 10)),
    "attention": row(Attention, partial(SGD, lr=0.1, momentum=0.5, weight_decay=0.1), prox=0.1),
    "layer without use": row(spare, prox=0.3),
    "lstm": row(partial(Reader, nn.LSTM), data=tokens),
    "gru": row(partial(Reader, nn.GRU), data=tokens, prox=0.1),
    "frozen biases": row(lambda: freeze("fc1.bias", "fc2.bias")),
    "frozen last layer": row(lambda: freeze("fc2.weight", "fc2.bias"), by_kind),
    # tasks
    "regression": task(lambda: Regression(MLP(12, SHAPE, 1), PLAIN, ["mae", "rmse"]), numbers),
    "linear regression": task(lambda: Regression(MCLR(SHAPE, 1), partial(SGD, lr=0.01)), numbers),
    "several labels": task(lambda: MultiLabel(MLP(12, SHAPE, 3), PLAIN), several),
    "next token": task(lambda: NextToken(nn.Embedding(7, 7), PLAIN), tokens, weights=weigh),
    "scores of sets": task(lambda: Classification(mlp(), PLAIN, scores=["auroc", "accuracy"])),
    "penalty": task(lambda: Classification(mlp(), by_kind, 0.02), prox=0.2),
    "penalty under adam": task(lambda: Classification(mlp(), partial(Adam, lr=0.01), 0.1)),
    "own module": task(Own),
    "reported losses of its own": task(lambda: Lenient(mlp(), PLAIN)),
    # optimizers
    "groups": optimized(by_kind),
    "momentum": optimized(SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": optimized(SGD, lr=0.05, momentum=0.9, nesterov=True),
    "dampening": optimized(SGD, lr=0.05, momentum=0.9, dampening=0.5),
    "adam": optimized(Adam, lr=0.01, weight_decay=0.01),
    "adam, decoupled": optimized(Adam, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "adamw": optimized(AdamW, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95)),
    "adamw by groups": optimized(partial(by_kind, kind=AdamW, rates=(0.01, 0.02), decays=(0.1, 0.0))),
    "amsgrad": optimized(Adam, lr=0.01, amsgrad=True),
    "rmsprop": optimized(RMSprop, lr=0.01),
    # what a fit is asked for
    "steps": row(budget=Budget(5, "steps")),
    "own batch size": row(budget=Budget(4, "steps", 7), purpose="fine-tune"),
    "steps of each client": row(budget=lengths(2, 1, 4, 3, 0, 2, 6, unit="steps", batch_size=6), prox=0.2),
    "few examples, many steps": row(
        optimizer=by_kind, data=partial(images, (0, 3, 5, 4)), budget=Budget(24, "steps", 2), prox=0.1,
        local=replace(LOCAL, lr_schedule=HALVED),
    ),
    "weights of mini-batches": row(weights=weigh),
    "weights under adam": row(optimizer=partial(Adam, lr=0.01), weights=weigh, prox=0.3),
    # options of local training
    "drop": row(local=replace(LOCAL, last_batch="drop")),
    "join": row(local=replace(LOCAL, last_batch="join")),
    "joined steps": row(local=replace(LOCAL, last_batch="join"), budget=Budget(3, "steps")),
    "clipping": row(local=replace(LOCAL, gradient_clip=1.0)),
    "rates of mini-batches": row(
        optimizer=partial(by_kind, kind=AdamW, rates=(0.01, 0.04)), local=replace(LOCAL, lr_schedule=HALVED)
    ),
    "a client that diverges": row(data=partial(floats, 44), local=replace(LOCAL, on_divergence="skip")),
    "dropouts, rates, scores of sets and own lengths": task(
        lambda: Classification(
            chain_of(nn.Dropout(0.2), 14, nn.ReLU(), nn.Dropout(0.4), 10), by_kind, scores=["auroc", "accuracy"]
        ),
        local=replace(LOCAL, lr_schedule=HALVED), prox=0.3, budget=EACH,
    ),
    # examples
    "floats": row(data=floats),
    "bytes with an offset": row(data=partial(images, offset=7.0)),
    "a scale for each pixel": row(data=lambda: images(scale=torch.linspace(0.001, 0.01, 81).view(SHAPE))),
    "crops and mirror images": row(data=partial(images, augment=Augment(2, True))),
    "own augmentation": row(data=partial(images, augment=brighten), weights=weigh),
    "more than 1,024 examples": row(lambda: nn.Linear(2, 10), data=large, local=FULL, weights=weigh_many),
    "batch norm of 1,024 examples": row(
        lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 10)), data=large, local=FULL
    ),
}  # fmt: skip

WAYS = {  # how close a way is to the Trainer, and how close a client's model is to that in other company
    "trainer": (0.0, 0.0),
    "loop": (1e-11, 0.0),
    "stack": (1e-11, 1e-11),  # to the bit today; not any more if lanes are sorted by length
    "stack of 1": (1e-11, 1e-11),
    # float32, whose numbers here are below 4 and have an error of 1e-7 in each step; 1 - beta2 in float32 would be seen
    "chain": (1e-6, 0.0),
    "dual": (1e-6, 0.0),
    "gpu": (1e-9, 1e-9),
}
REFUSED = {  # row: who refuses it
    **dict.fromkeys(("maximize", "amsgrad", "rmsprop"), "loop stack chain"),
    **dict.fromkeys((
        "own module",  # a chain, but for its label smoothing
        "cnn with dropout", "strides", "layer norm", "attention",
        "next token", "layer without use",
        "lstm", "gru", "two dropouts", "dropouts, rates, scores of sets and own lengths", "activation in front",
        *(name for name in CASES if name.startswith("batch norm")),
    ), "chain"),
}  # fmt: skip
KIND = {"stack of 1": "stack", "gpu": "stack", "dual": "chain"}


# rows in which client 4 does not train, because its length is 0 or it diverges
UNTRAINED = {
    "own start, centre and length", "clipping and a proximal term", "adam, full batches", "mlp", "steps of each client",
    "a client that diverges", "dropouts, rates, scores of sets and own lengths",
}  # fmt: skip


def measure(clients: Clients) -> dict[str, Tensor]:
    everyone, index = torch.arange(clients.data.num_clients), torch.arange(30) % len(clients.data.examples)
    if clients.case.local.lr_schedule is not None:
        clients.fit(torch.tensor([2]), round=0)  # an engine that has trained before has other rates now
    fitted = clients.fit(everyone)
    return {
        "rows": fitted.rows,
        "losses": fitted.losses,
        "trained": fitted.trained,
        "gradients": clients.work.gradients(clients.models[0], everyone),
        "losses of models": clients.work.losses(clients.models[:3], everyone),
        "losses of examples": clients.work.example_losses(clients.models[:2], everyone),
        **clients.score(torch.arange(30) // 10, index),
    }


@cache
def reference(name: str) -> dict[str, Tensor]:
    return measure(Clients("trainer", CASES[name]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_every_way_gives_the_trainers_result_whoever_else_trains(name: str, way: str, monkeypatch: pytest.MonkeyPatch):
    if reason := why_absent(way):
        pytest.skip(reason)
    set_form(way, monkeypatch)
    case, (tolerance, company) = CASES[name], WAYS[way]
    against = find_refusal(way, case)
    assert (against is not None) == (KIND.get(way, way) in REFUSED.get(name, "").split()), against
    if against is not None:
        return
    clients = Clients(way, case)
    found = reference(name) if way == "trainer" else measure(clients)
    for what, expected in reference(name).items():
        close = partial(assert_close, rtol=tolerance, atol=tolerance, equal_nan=True, check_dtype=False)
        close(found[what], expected, msg=lambda why, what=what: f"{what}: {why}")
    trained = found["trained"]
    sizes = clients.data.num_examples.tolist()
    assert trained.tolist() == [size > 0 and (k != 4 or name not in UNTRAINED) for k, size in enumerate(sizes)]
    assert (found["rows"] - clients.models[START[: len(trained)]]).norm(dim=1).gt(1e-3).tolist() == trained.tolist()
    several = [1, 0, 2, 1] if len(trained) < 6 else [0, 5] if way == "trainer" else [5, 0, 4, 1, 5]
    for some in ([2], several)[company > 0 or way == "trainer" :]:
        alone, same = clients.fit(torch.tensor(some)), partial(assert_close, rtol=0, atol=company, equal_nan=True)
        same(alone.rows, found["rows"][some])
        same(alone.losses, found["losses"][some])
        same(clients.work.gradients(clients.models[0], torch.tensor(some)), found["gradients"][some])


@pytest.mark.ray
@pytest.mark.usefixtures("one_thread", "cluster")
def test_two_workers_give_the_bits_of_one_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lit_cfl.engines.ray.engine._HAND_OVER_PAYS", 0)
    case, some = CASES["dropouts, rates, scores of sets and own lengths"], [4, 0, 2, 4]
    alone, shared = Clients("loop", case), Clients("ray", case)
    try:
        found, again = measure(shared), shared.fit(torch.tensor(some))
    finally:
        shared.close()
    for what, expected in measure(alone).items():
        assert_close(found[what], expected, rtol=0, atol=0, equal_nan=True, msg=what)
    assert torch.equal(again.rows, found["rows"][some])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_a_client_that_starts_from_the_only_model_leaves_it_unchanged(name: str, way: str):
    if reason := why_absent(way):
        pytest.skip(reason)
    clients, client = Clients(way, CASES[name]), torch.tensor([2])
    models, centers = clients.models[1:2].clone(), clients.models[2:3].clone()
    row = clients.work.fit(models, client, prox=0.3, centers=centers).rows[0]
    assert torch.equal(models[0], clients.models[1])
    assert torch.equal(centers[0], clients.models[2])
    assert (row - models[0]).norm() > 1e-3


@pytest.mark.parametrize(
    ("precision", "way", "least", "most"),
    [
        ("32-true", "loop", 1e-9, 1e-5),
        ("32-true", "stack", 1e-9, 1e-5),
        ("tf32", "loop", 1e-9, 1e-5),  # on a CPU as 32-true
        ("bf16-mixed", "loop", 1e-5, 2e-2),  # bfloat16 has a precision of eight bits
        ("bf16-true", "loop", 1e-4, 1e-1),
        ("bf16-true", "stack", 1e-4, 1e-1),
    ],
)
def test_other_precisions_stay_close(precision: str, way: str, least: float, most: float):
    clients = Clients(way, CASES["mlp"], precision)
    found = clients.fit(torch.arange(7)).rows
    assert found.dtype == torch.float32
    assert least < float((found - reference("mlp")["rows"]).abs().max()) < most


@pytest.mark.parametrize("way", ["loop", "stack", "stack of 1", "chain", "dual"])
def test_a_client_that_diverges_first_changes_no_other(way: str, monkeypatch: pytest.MonkeyPatch):
    if reason := why_absent(way):
        pytest.skip(reason)
    set_form(way, monkeypatch)
    local = replace(LOCAL, on_divergence="skip")
    found, expected = (Clients(way, row(data=data, local=local)) for data in (partial(floats, 0), floats))
    spoilt, sound = (clients.fit(torch.arange(7)) for clients in (found, expected))
    assert spoilt.trained.tolist() == [False, False, True, False, True, True, True]
    assert torch.equal(spoilt.rows[1], found.models[START[1]])
    assert_close(spoilt.rows[2:], sound.rows[2:], rtol=0, atol=WAYS[way][1])
    assert_close(spoilt.losses[2:], sound.losses[2:], rtol=0, atol=WAYS[way][1], equal_nan=True)


def test_weights_are_refused_if_a_step_computes_another_loss():
    with pytest.raises(InputError, match="weighs examples"):
        Clients("trainer", task(OwnStep, weights=weigh)).fit(torch.tensor([2]))


# Outside of the package: what all ways share
OF_MINI_BATCHES = ["nesterov", "adamw", "clipping", "steps", "drop", "join", "joined steps", "rates of mini-batches"]


def train_plainly(case: Case, clients: Clients, client: int) -> tuple[Tensor, float]:
    """Trains a client by PyTorch alone. Returns its model, and its mean loss over all examples that it saw."""
    options = case.options_of(torch.tensor([client]))
    inputs, labels = examples_of(client)
    if (augment := clients.data.examples.augment) is not None:
        inputs, labels = augment((inputs, labels), torch.empty(0))
    module, center = clients.module(clients.models[START[client]]), clients.models[CENTER[client]]
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer, losses = module.configure_optimizers(), []
    if case.local.lr_schedule is not None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5**ROUND
    weights = options.get("weights", torch.ones(len(labels)))
    for part in mini_batches(case.local, options.get("budget", Budget(case.local.epochs)), client):
        optimizer.zero_grad()
        of_each = cross_entropy(module.net(inputs[part]), labels[part], reduction="none")
        loss = (weights[part] * of_each).mean() + penalty_of(module)
        losses += [float(loss)] * len(part)
        pull = (nn.utils.parameters_to_vector(trained) - center).square().sum() / 2
        (loss + options.get("prox", 0) * pull).backward()
        if case.local.gradient_clip is not None:
            nn.utils.clip_grad_norm_(trained, case.local.gradient_clip)
        optimizer.step()
    return nn.utils.parameters_to_vector(trained).detach(), sum(losses) / len(losses)


def mini_batches(local: LocalTraining, budget: Budget, client: int) -> list[Tensor]:
    """Draws a client's mini-batches: in each epoch a permutation by its own generator, in pieces."""
    size, draws, length, found = SIZES[client], generator(5, "train", ROUND, client), int(budget.length), []
    width = budget.batch_size or local.batch_size
    for _ in range(length):
        pieces = list(torch.randperm(size, generator=draws).split(size if width == "full" else width))
        if local.last_batch != "keep" and len(pieces) > 1 and len(pieces[-1]) < width:
            last = pieces.pop()
            pieces[-1] = torch.cat([pieces[-1], last]) if local.last_batch == "join" else pieces[-1]
        found += pieces
    return found[: length if budget.unit == "steps" else None]


def examples_of(client: int) -> tuple[Tensor, Tensor]:
    examples, first = images().examples, sum(SIZES[:client])
    own = slice(first, first + SIZES[client])
    return examples.inputs[own].double() / 255, examples.labels[own]


def penalty_of(module: LightningModule) -> Tensor | float:
    kernels = {0.05: [module.net.fc1.weight, module.net.fc2.weight], 0.0: []}[module.kernel_l2]
    return 0.05 * sum(k.square().sum() for k in kernels if "fc1" in str(module.penalised_layers) or k is kernels[1])


@pytest.mark.parametrize("name", [*BY_HAND, *OF_MINI_BATCHES])
def test_the_trainer_gives_the_result_of_plain_pytorch(name: str):
    clients, found = Clients("trainer", CASES[name]), reference(name)
    for client in (number for number, trained in enumerate(found["trained"]) if trained):
        model, loss = train_plainly(CASES[name], clients, client)
        assert_close(found["rows"][client], model, rtol=0, atol=1e-11)
        assert_close(float(found["losses"][client]), loss, rtol=0, atol=1e-11)
    for client in range(len(SIZES)):
        inputs, labels = examples_of(client)
        nets = [clients.module(model).net for model in clients.models[:3]]
        losses = torch.stack([cross_entropy(net(inputs), labels, reduction="none") for net in nets]).detach()
        close = partial(assert_close, rtol=0, atol=1e-11, equal_nan=True)
        close(found["losses of models"][client], losses.mean(1))
        close(found["losses of examples"][:, sum(SIZES[:client]) :][:, : SIZES[client]], losses[:2])
        if SIZES[client]:
            module = clients.module(clients.models[0])
            loss = cross_entropy(module.net(inputs), labels) + penalty_of(module)
            gradient = torch.autograd.grad(loss, [p for p in module.parameters() if p.requires_grad])
            close(found["gradients"][client], torch.cat([g.flatten() for g in gradient]))


def losses_of_tokens(outputs: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Computes each sequence's mean loss over its tokens, without padding, and the numbers of its tokens."""
    counted = tokens[:, 1:] != 0
    losses = -outputs.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0] * counted
    return losses.sum(1) / counted.sum(1), counted.sum(1)


def scores_of_tokens(outputs: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    (losses, counts), counted = losses_of_tokens(outputs, tokens), tokens[:, 1:] != 0
    right = ((outputs.argmax(2) == tokens[:, 1:]) & counted).sum(1).double() / counts
    return torch.stack([losses, right]), torch.stack([counts, counts])


# row: probabilities of the outputs, from which those of mixtures follow; losses; values and weights of the scores
TASKS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[..., Tensor], Callable[..., Any]]] = {
    "full batches": (
        lambda outputs: outputs.softmax(-1),
        lambda p, x, y: -p.gather(1, y[:, None])[:, 0].log(),
        lambda p, x, y: ((p.argmax(1) == y)[None].double(), torch.ones(1, len(y))),
    ),
    "several labels": (
        lambda outputs: outputs.sigmoid(),
        lambda p, x, y: -torch.where(y > 0.5, p, 1 - p).log().mean(1),
        lambda p, x, y: (
            torch.stack([((p > 0.5) == (y > 0.5)).double().mean(1), ((p > 0.5) == (y > 0.5)).all(1).double()]),
            torch.ones(2, len(y)),
        ),
    ),
    "regression": (
        lambda outputs: outputs,
        lambda p, x, y: (p[:, 0] - y).square(),
        lambda p, x, y: ((p[:, 0] - y).abs()[None], torch.ones(1, len(y))),
    ),
    "next token": (
        lambda outputs: outputs.softmax(-1),
        lambda p, x, y: losses_of_tokens(p.log(), x)[0],
        lambda p, x, y: scores_of_tokens(p.log(), x),
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_losses_and_scores_of_models_and_mixtures_are_those_of_plain_pytorch(name: str):
    clients, (probabilities, loss, score) = Clients("trainer", CASES[name]), TASKS[name]
    index, which = torch.arange(30), torch.arange(30) // 10
    inputs, labels = clients.data.examples.batch(index, torch.float64)
    tokens = inputs[:, :-1] if name == "next token" else inputs
    models = torch.stack([probabilities(clients.module(model).net(tokens)) for model in clients.models]).detach()
    mixed = (MIXING[which].T.reshape(4, 30, *[1] * (models.dim() - 2)) * models).sum(0)
    for of, outputs in {"of a model": models[which, index], "of a mixture": mixed}.items():
        assert_close(reference(name)[f"losses {of}"], loss(outputs, inputs, labels), rtol=0, atol=1e-11)
        values, weights = score(outputs, inputs, labels)
        assert_close(reference(name)[f"values {of}"], values, rtol=0, atol=1e-11)
        assert_close(reference(name)[f"weights {of}"], weights, rtol=0, atol=0, check_dtype=False)


@pytest.mark.parametrize("way", ["trainer", "loop", "stack"])
def test_functions_on_clients_have_random_numbers_of_their_own_and_neither_dropout_nor_augmentation(way: str):
    case = replace(CASES["two dropouts"], data=CASES["an augmentation"].data)
    clients, some = Clients(way, case), torch.tensor([2, 4])

    def draw(inputs: Tensor, labels: Tensor) -> Tensor:
        return torch.rand(3)

    of_each = clients.work.map(draw, some)
    drawn = [*of_each, *clients.at(3).map(draw, some)]
    assert len(torch.stack(drawn).unique()) == 12
    assert torch.equal(clients.work.map(draw, some.flip(0))[1], of_each[0])
    module = clients.module(clients.models[1]).eval()
    found = clients.work.map(lambda inputs, labels, module: module(inputs), some, clients.models[1])
    assert_close(found[0], module(examples_of(2)[0]).detach(), rtol=0, atol=1e-11)


# Every example of a client has a weight of its own, which starts at 0, and a step of rate 1/2 on the squared error
# moves it to 1 / (size of the mini-batch): the trained weights say what a step was trained on.


def one_hot(sizes: Sequence[int], **options: Any) -> FederatedData:
    inputs = torch.cat([torch.eye(25)[:size] for size in sizes])
    return clients_of(Examples(inputs, torch.ones(len(inputs)), 0, **options), sizes)


def work_of(sizes: Sequence[int], local: LocalTraining = LOCAL, round: int = 2, **options: Any) -> LocalWork:
    make = lambda: Regression(nn.Linear(25, 1, bias=False), partial(SGD, lr=0.5))  # noqa: E731
    return Clients("loop", Case(make, lambda: one_hot(sizes, **options), local, {})).at(round)


def read_weights(
    client: int, budget: Budget, sizes: Sequence[int] = (0, 3, 17, 20, 25, 20), purpose: str = "train", **options: Any
) -> Tensor:
    zeros = torch.zeros(1, 25).double()
    return work_of(sizes, **options).fit(zeros, torch.tensor([client]), budget=budget, purpose=purpose).rows[0]


def test_mini_batches_differ_between_clients_rounds_purposes_and_epochs():
    def first(client: int, **options: Any) -> frozenset[int]:
        return frozenset(read_weights(client, Budget(1, "steps"), **options).nonzero().flatten().tolist())

    second = read_weights(3, Budget(3, "steps"))  # 1/10 + 1/10 (1 - 1/10) if it is also in the third mini-batch
    next_epoch = frozenset((second > 0.15).nonzero().flatten().tolist())
    drawn = [first(3), first(5), first(3, round=3), first(3, purpose="tune"), next_epoch]
    assert [len(one) for one in drawn] == [10] * 5
    assert len(set(drawn)) == 5
    assert first(3) == first(3, sizes=(4, 9, 0, 20))


def test_augmentations_differ_between_examples_clients_rounds_purposes_and_steps():
    def dim(batch: tuple[Tensor, Tensor], keys: Tensor) -> tuple[Tensor, Tensor]:
        return batch[0] * (0.5 + draw_keyed_uniform(keys, 1)).to(batch[0].dtype), batch[1]

    def factors(client: int, **options: Any) -> Tensor:
        return 20 * read_weights(client, Budget(1, "steps", "full"), augment=dim, **options)[:20]

    of_one = factors(3)
    drawn = [of_one, factors(5), factors(3, round=3), factors(3, purpose="tune")]
    assert len(torch.cat(drawn).unique()) == 80
    assert torch.cat(drawn).min() > 0.5
    assert torch.cat(drawn).max() < 1.5
    assert torch.equal(of_one, factors(3, sizes=(4, 9, 0, 20)))
    twice = read_weights(3, Budget(2, "steps", "full"), augment=dim)[:20]
    assert ((of_one + of_one * (1 - of_one * of_one / 20)) / 20 - twice).abs().min() > 1e-6


def test_dropouts_differ_between_layers_examples_clients_rounds_purposes_and_steps():
    """Weights of ones that two dropouts precede are 0 or 1 / (3/4 1/2) after a step."""
    net = lambda: nn.Sequential(nn.Dropout(0.25), nn.Dropout(0.5), nn.Linear(2000, 1, bias=False))  # noqa: E731
    data = clients_of(Examples(torch.ones(4, 2000), torch.ones(4), 0), (0, 1, 1, 2))
    clients = Clients("loop", Case(lambda: Regression(net(), partial(SGD, lr=0.5)), lambda: data, LOCAL, {}))
    zeros, one = torch.zeros(1, 2000).double(), torch.tensor([1])

    def kept(client: int, round: int = 2, steps: int = 1, **options: Any) -> Tensor:
        fit = clients.at(round).fit(zeros, torch.tensor([client]), budget=Budget(steps, "steps"), **options)
        return fit.rows[0] * 3 / 8

    masks = [kept(1), kept(2), kept(1, round=3), kept(1, purpose="tune")]
    masks.append(-clients.work.gradients(zeros[0], one)[0] * 3 / 16)
    for mask in masks:
        assert_close(mask.unique(), torch.tensor([0.0, 1.0]).double())
        assert abs(mask.mean() - 3 / 8) < 0.04  # 1/2 if both layers drew the same
    for mask, other in combinations(masks, 2):
        assert abs((mask * other).mean() - (3 / 8) ** 2) < 0.04  # 3/8 if both masks were the same
    assert torch.equal(kept(1), masks[0])
    assert abs(kept(1, steps=2).eq(0).double().mean() - (5 / 8) ** 2) < 0.04
    assert abs(kept(3).eq(0).double().mean() - (5 / 8) ** 2) < 0.04


def test_every_value_of_an_option_has_a_row_that_trains_with_it():
    assert set(REFUSED) | UNTRAINED <= set(CASES)
    cases = [case for name, case in CASES.items()]
    budgets = [budget for case in cases if (budget := case.options_of(torch.tensor([1])).get("budget"))]
    for kind, used in ((LocalTraining, [case.local for case in cases]), (Budget, budgets)):
        for field in fields(kind):
            values = [getattr(one, field.name) for one in used]
            for value in literals_of(get_type_hints(kind)[field.name]):
                assert value in [one for one in values if isinstance(one, str)], (field.name, value)
            assert any(isinstance(one, Tensor) or one != field.default for one in values), field.name
    given = {name for case in cases for name in case.options} | {"models", "clients", "start", "centers", "center"}
    assert {name for name in signature(LocalWork.fit).parameters if name != "self"} == given


def literals_of(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [value for part in get_args(hint) for value in literals_of(part)]
