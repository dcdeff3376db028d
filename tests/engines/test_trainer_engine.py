"""Tests the `trainer` engine against plain PyTorch."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from lightning import LightningModule
from quadratic import ids
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from lit_cfl.data import ClientIndex, Examples, FederatedData
from lit_cfl.engines.check_task import require_trainable
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import DivergedError, InputError
from lit_cfl.local_work import Budget
from lit_cfl.nets import MCLR, MLP
from lit_cfl.seeds import generator
from lit_cfl.tasks import Classification

SIZES = (7, 0, 12, 3)
DOUBLE, BATCHES = Plan(precision="64-true"), LocalTraining(1, 4)


def made_data() -> FederatedData:
    rng = torch.Generator().manual_seed(0)
    total = sum(SIZES)
    examples = Examples(
        torch.randn(total, 5, generator=rng, dtype=torch.float64), torch.randint(0, 3, (total,), generator=rng), 3
    )
    train = ClientIndex.from_lists(list(torch.arange(total).split(list(SIZES))))
    none = ClientIndex.from_lists([ids()] * len(SIZES))
    return FederatedData(examples, train, none, none, torch.full((len(SIZES),), -1))


def engine_of(
    plan: Plan = DOUBLE,
    net: Callable[[], nn.Module] = lambda: MCLR([5], 3),
    optimizer: partial[torch.optim.Optimizer] = partial(torch.optim.SGD, lr=0.1),
    **local: object,
) -> Engine:
    return Engine(lambda: Classification(net(), optimizer), plan, 11, LocalTraining(**local))


def plain_training(engine: Engine, client: int, epochs: int, batch: int, prox: float = 0.0) -> Tensor:
    """Trains a client in a plain loop, as a reference; returns its model."""
    data, module = made_data(), engine.module(engine.initial(0))
    optimizer = module.configure_optimizers()
    begin = [p.detach().clone() for p in module.parameters()]
    inputs, labels = data.examples.batch(data.train[client], torch.float64)
    rng = generator(11, "train", 4, client)
    for _ in range(epochs):
        for part in torch.randperm(len(labels), generator=rng).split(batch):
            loss = cross_entropy(module(inputs[part]), labels[part])
            loss = loss + prox / 2 * sum(
                (p - b).square().sum() for p, b in zip(module.parameters(), begin, strict=True)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return engine.layout.read(module, torch.float64)


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.SGD, lr=0.1),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        partial(torch.optim.AdamW, lr=0.01),
    ],
    ids=["sgd", "nesterov", "adamw"],
)
@pytest.mark.parametrize("prox", [0.0, 0.8])
def test_client_trains_as_in_a_plain_loop(optimizer: partial[torch.optim.Optimizer], prox: float):
    engine = engine_of(optimizer=optimizer, epochs=3, batch_size=4)
    start = engine.initial(0)[None]
    fitted = engine.at(4, made_data()).fit(start, ids(2, 0), prox=prox, centers=start)
    for row, client in zip(fitted.rows, (2, 0), strict=True):
        assert_close(row, plain_training(engine, client, 3, 4, prox), atol=1e-12, rtol=0)


def test_full_batch_is_one_step_an_epoch():
    engine = engine_of(epochs=2, batch_size="full")
    fitted = engine.at(4, made_data()).fit(engine.initial(0)[None], ids(0))
    assert_close(fitted.rows[0], plain_training(engine, 0, 2, 7), atol=1e-12, rtol=0)


def test_budget_in_steps_continues_into_new_epochs():
    engine = engine_of(epochs=9, batch_size=4)  # client 0 has 2 batches per epoch
    fitted = engine.at(4, made_data()).fit(engine.initial(0)[None], ids(0), budget=Budget(4, "steps"))
    assert_close(fitted.rows[0], plain_training(engine, 0, 2, 4), atol=1e-12, rtol=0)


def test_loss_is_the_mean_over_all_examples_of_the_fit():
    engine = engine_of(optimizer=partial(torch.optim.SGD, lr=0.0), epochs=2, batch_size=4)
    data = made_data()
    fitted = engine.at(4, data).fit(engine.initial(0)[None], ids(0, 2))
    expected = engine.at(4, data).losses(engine.initial(0)[None], ids(0, 2))[:, 0]
    assert_close(fitted.losses, expected)
    assert fitted.loss == pytest.approx((7 * expected[0] + 12 * expected[1]) / 19)


def test_result_of_a_client_does_not_depend_on_the_others():
    engine = engine_of(epochs=2, batch_size=4)
    work, start = engine.at(4, made_data()), engine.initial(0)[None]
    together, reverse = work.fit(start, ids(0, 2, 3)).rows, work.fit(start, ids(3, 0)).rows
    assert torch.equal(together[[2, 0]], reverse)


def test_chunks_change_no_bit():
    whole, data = engine_of(net=lambda: MLP(40_000, [5], 3)), made_data()
    small = engine_of(Plan(precision="64-true", rows_mib=2), net=lambda: MLP(40_000, [5], 3))  # 2.7 MiB per row
    start = whole.initial(0)[None]
    fitted = small.at(0, data).fit(start, ids(0, 2, 3))
    assert not fitted.held
    chunks = torch.cat([chunk.models for chunk in fitted.chunks()])
    assert torch.equal(chunks, whole.at(0, data).fit(start, ids(0, 2, 3)).rows)


def test_batches_change_with_round_and_purpose_and_nothing_else():
    engine, data = engine_of(epochs=1, batch_size=2), made_data()
    start = engine.initial(0)[None]

    def row(round: int, purpose: str) -> Tensor:
        return engine.at(round, data).fit(start, ids(2), purpose=purpose).rows[0]

    assert torch.equal(row(0, "train"), row(0, "train"))
    assert not torch.equal(row(0, "train"), row(1, "train"))
    assert not torch.equal(row(0, "train"), row(0, "pretrain"))


def test_each_client_starts_from_its_own_model_with_a_fresh_optimizer():
    engine = engine_of(optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9), epochs=1, batch_size=4)
    work = engine.at(4, made_data())
    models = torch.stack([engine.initial(0), engine.initial(1)])
    both = work.fit(models, ids(2, 2), ids(1, 0)).rows
    assert torch.equal(both[1], work.fit(models, ids(2)).rows[0])
    assert torch.equal(both[0], work.fit(models[1:], ids(2)).rows[0])


def test_client_without_data_returns_its_model_untrained():
    engine = engine_of()
    fitted = engine.at(0, made_data()).fit(engine.initial(0)[None], ids(1, 0))
    assert fitted.trained.tolist() == [False, True]
    assert torch.equal(fitted.rows[0], engine.initial(0))


def test_diverging_client_stops_the_run_with_its_name():
    engine = engine_of(optimizer=partial(torch.optim.SGD, lr=1e308), epochs=3, batch_size=2)
    with pytest.raises(DivergedError, match=r"client 2 diverged in round 7.*learning rate 1e\+308"):
        engine.at(6, made_data()).fit(engine.initial(0)[None], ids(2))


def test_diverging_client_is_left_out_where_asked_and_touches_nobody_else():
    class Trap(Classification):  # the loss is NaN on the examples of client 2
        def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            bad = (batch[0][:, :1] == made_data().examples.inputs[7:19, 0]).any(1)
            return super().losses(batch) + torch.where(bad, float("nan"), 0.0)

    settings = LocalTraining(epochs=1, batch_size=4, on_divergence="skip")
    trap = Engine(lambda: Trap(MCLR([5], 3), partial(torch.optim.SGD, lr=0.1)), DOUBLE, 11, settings)
    start = trap.initial(0)[None]
    fitted = trap.at(4, made_data()).fit(start, ids(0, 2, 3))
    assert fitted.trained.tolist() == [True, False, True]
    assert fitted.skipped == 1
    assert torch.equal(fitted.rows[1], start[0])
    assert torch.equal(fitted.rows[[0, 2]], engine_of(batch_size=4).at(4, made_data()).fit(start, ids(0, 3)).rows)


def test_gradient_is_clipped_to_the_norm_with_the_proximal_part_in_it():
    engine = engine_of(epochs=1, batch_size="full", gradient_clip=0.01)
    start = engine.initial(0)[None]
    far = start + 100.0
    fitted = engine.at(4, made_data()).fit(start, ids(0), prox=1.0, centers=far)
    assert (fitted.rows[0] - start[0]).norm().item() == pytest.approx(0.1 * 0.01, rel=1e-4)


def test_gradients_and_losses_equal_autograd():
    engine, data = engine_of(), made_data()
    model = engine.initial(3)
    module = engine.module(model)
    inputs, labels = data.examples.batch(data.train[2], torch.float64)
    cross_entropy(module(inputs), labels).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    work = engine.at(0, data)
    assert_close(work.gradients(model, ids(0, 2))[1], expected)
    assert_close(work.gradients(model, ids(2), sketch=lambda rows: rows[:, :2])[0], expected[:2])
    assert_close(work.losses(torch.stack([model, model]), ids(2))[0, 1], cross_entropy(module(inputs), labels).detach())
    assert work.losses(model[None], ids(1)).isnan().all()


def test_batch_statistics_are_part_of_the_row():
    engine = engine_of(net=lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)), epochs=1, batch_size=7)
    row = engine.at(0, made_data()).fit(engine.initial(0)[None], ids(0)).rows[0]
    buffers = row[engine.layout.num_parameters :]
    assert len(buffers) == 10
    data = made_data()
    assert_close(buffers[:5], 0.1 * data.examples.inputs[data.train[0]].mean(0))


def test_dropout_is_the_same_in_every_run_and_leaves_the_global_generator_alone():
    engine = engine_of(net=lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3)), epochs=2, batch_size=4)
    work, start = engine.at(0, made_data()), engine.initial(0)[None]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = work.fit(start, ids(2)).rows
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(work.fit(start, ids(2)).rows, first)


def test_a_net_made_outside_the_task_is_refused():
    engine = Engine(partial(Classification, MCLR([5], 3)), Plan(), seed=0)
    with pytest.raises(InputError, match=r"same net at every call.*make the net inside"):
        engine.initial(1)
    with pytest.raises(InputError, match="same net at every call"):
        require_trainable(engine, made_data())


def test_any_training_hook_of_a_module_is_called():
    calls = []

    class Hooked(Classification):
        def on_train_epoch_end(self) -> None:
            calls.append(self.current_epoch)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)]

    engine = Engine(lambda: Hooked(MCLR([5], 3)), DOUBLE, 11, LocalTraining(3, "full"))
    start = engine.initial(0)
    row = engine.at(0, made_data()).fit(start[None], ids(0)).rows[0]
    assert calls == [0, 1, 2]
    assert_close(row, start - engine.at(0, made_data()).gradients(start, ids(0))[0])  # from epoch 1 on, the rate is 0


class TwoOptimizers(Classification):
    """Task that updates weights and biases by separate optimizers, after a common backward pass."""

    def __init__(self, *options: object):
        super().__init__(*options)
        self.automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD([p for p in self.parameters() if p.dim() == dim], lr=0.1) for dim in (1, 2)]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(self.losses(batch).mean())
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("prox", [0.0, 0.8])
def test_several_optimizers_take_the_steps_of_one(prox: float):
    rows = []
    for kind in (Classification, TwoOptimizers):
        engine = Engine(lambda kind=kind: kind(MCLR([5], 3), partial(torch.optim.SGD, lr=0.1)), DOUBLE, 11, BATCHES)
        start = engine.initial(0)[None]
        centers, budget = torch.zeros_like(start), Budget(5, "steps")  # client 2 has 3 mini-batches per epoch
        rows.append(engine.at(4, made_data()).fit(start, ids(2), budget=budget, prox=prox, centers=centers).rows)
    assert_close(*rows, atol=1e-12, rtol=0)


def test_module_without_losses_is_refused():
    class Bare(LightningModule):
        pass

    with pytest.raises(InputError, match=r"Bare has no `losses\(batch\)"):
        Engine(Bare, DOUBLE, 0)
