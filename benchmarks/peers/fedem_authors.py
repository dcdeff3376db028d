"""Runs the published code of FedEM on a few small clients, and writes its results as a table.

    git clone https://github.com/omarfoq/FedEM CHECKOUT        # 996fadd
    python benchmarks/peers/fedem_authors.py CHECKOUT benchmarks/results/fedem_authors.json

Needs torch and scikit-learn. Their classes are used unchanged: `Learner`, `LearnersEnsemble`, `MixtureClient` and
`CentralizedAggregator`, which aggregates and evaluates. Learners are a linear net with plain SGD; every client
participates in each round, and mini-batches contain all of its examples, so that the order of examples does not matter.
Losses and accuracies are those of `LearnersEnsemble.evaluate_iterator`, of mixed probabilities.
`tests/algorithms/test_fedem.py` compares ours with the table.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SIZES, NEWCOMER, TEST = (6, 9, 14), 8, 5
INPUTS, LABELS, MODELS, ROUNDS, EPOCHS, RATE = 4, 3, 2, 6, 2, 0.5


class Numbered(Dataset):
    """Data set that also returns the index of each example, as the published loaders do."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, int]:
        return self.inputs[number], self.labels[number], number


class Silent:
    """Stand-in for a SummaryWriter; it writes nothing."""

    def add_scalar(self, *figures: Any) -> None:
        pass


def make_clients(rng: torch.Generator) -> list[dict[str, Tensor]]:
    """Makes clients that mix two linear models in individual shares; the last one is a newcomer."""
    models = 2 * torch.randn(2, LABELS, INPUTS, generator=rng)
    clients = []
    for size, share in zip((*SIZES, NEWCOMER), (0.9, 0.5, 0.2, 0.7), strict=True):
        inputs = torch.randn(size + TEST, INPUTS, generator=rng)
        first = torch.rand(size + TEST, generator=rng) < share
        scores = torch.where(first[:, None], inputs @ models[0].T, inputs @ models[1].T)
        clients.append({"inputs": inputs, "labels": scores.argmax(1)})
    return clients


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    sys.path.insert(0, str(given.checkout))
    from aggregator import CentralizedAggregator
    from client import MixtureClient
    from learners.learner import Learner
    from learners.learners_ensemble import LearnersEnsemble
    from utils.metrics import accuracy

    rng = torch.Generator().manual_seed(0)
    made = make_clients(rng)
    starts = torch.randn(MODELS, LABELS * INPUTS + LABELS, generator=rng) / 2

    def ensemble() -> Any:
        learners = []
        for row in starts:
            model = nn.Linear(INPUTS, LABELS)
            nn.utils.vector_to_parameters(row.clone(), model.parameters())
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            learners.append(Learner(model, nn.CrossEntropyLoss(reduction="none"), accuracy, "cpu", optimizer))
        return LearnersEnsemble(learners, torch.ones(MODELS) / MODELS)

    def client(parts: dict[str, Tensor]) -> Any:
        train, test = (
            Numbered(parts["inputs"][part], parts["labels"][part]) for part in (slice(None, -TEST), slice(-TEST, None))
        )
        loaders = [DataLoader(part, batch_size=len(part)) for part in (train, train, test)]
        return MixtureClient(ensemble(), *loaders, Silent(), EPOCHS)

    clients, newcomer, middle = [client(parts) for parts in made[:-1]], client(made[-1]), ensemble()
    server = CentralizedAggregator(
        clients, middle, log_freq=10**6, global_train_logger=Silent(), global_test_logger=Silent(), seed=0
    )
    rounds = []
    for _ in range(ROUNDS):
        server.mix()
        scored = [one.learners_ensemble.evaluate_iterator(one.test_iterator) for one in clients]
        rounds.append(
            {
                "weights": [one.learners_ensemble.learners_weights.tolist() for one in clients],
                "models": [flat(learner.model).tolist() for learner in middle],
                "loss": [float(loss) for loss, _ in scored],
                "accuracy": [float(share) for _, share in scored],
            }
        )
    server.test_clients, steps = [newcomer], []
    for _ in range(3):
        server.update_test_clients()  # makes one EM step for the newcomer's weights
        steps.append(newcomer.learners_ensemble.learners_weights.tolist())
    table = {
        "settings": {"epochs": EPOCHS, "lr": RATE, "test": TEST},
        "clients": [{name: part.tolist() for name, part in parts.items()} for parts in made],
        "starts": starts.tolist(),
        "rounds": rounds,
        "newcomer": steps,
    }
    given.out.write_text(json.dumps(table) + "\n")


if __name__ == "__main__":
    main()
