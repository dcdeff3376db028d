"""`--dry-run`: how large an experiment is and how long it will take, without running it."""

from time import monotonic

from rich.console import Console

from lit_cfl.experiment import Experiment, Prepared
from lit_cfl.local.engines import mean_steps
from lit_cfl.local.plan import Plan
from lit_cfl.local.stackable import obstacles


def show(console: Console, experiment: Experiment) -> None:
    """Prints the size of the experiment, and the time that one client's training suggests."""
    prepared = experiment.prepare(experiment.seeds[0])
    data, engine = prepared.data, prepared.engine
    sizes = data.num_examples[data.population]
    steps, seconds = client_steps(prepared), _seconds_per_step(prepared)
    runs = len(experiment.seeds) * (2 if experiment.baseline else 1)
    row = engine.layout.num_columns * engine.plan.dtype.itemsize
    cohort = min(experiment.cohort_size * row, max(engine.plan.rows_mib * 2**20, row))
    inputs = data.examples.inputs
    plan = engine.plan
    for name, value in {
        "clients": f"{len(data.population)} in training, {data.num_clients - len(data.population)} newcomers",
        "training examples": f"{int(sizes.sum())}, {int(sizes.min())} to {int(sizes.max())} a client",
        "model": f"{engine.layout.num_parameters:,} parameters, {row / 2**20:.2f} MiB",
        "rounds": f"{experiment.rounds} with {experiment.cohort_size} clients, {runs} run(s)",
        "local steps": f"about {steps * runs:,} (pre-training and evaluation not counted)",
        "plan": f"engine {plan.engine}, {plan.device}, {plan.precision}, {plan.threads} thread(s), {_stack(plan)}",
        "module": "; ".join(obstacles(engine.template, engine.layout, data.examples, plan.precision))
        or "losses and one plain optimizer: fit for every engine",
        "memory": f"about {(cohort + inputs.nbytes) / 2**20:.1f} MiB for data and local models, beside PyTorch itself",
        "time": f"about {_duration(steps * runs * seconds)} of local training, judged by one client on this machine",
    }.items():
        console.print(f"{name:<18} {value}", soft_wrap=True, highlight=False)


def client_steps(prepared: Prepared) -> int:
    """Expected mini-batches over all rounds."""
    experiment = prepared.experiment
    return round(experiment.rounds * experiment.cohort_size * mean_steps(experiment.local, prepared.data))


def _seconds_per_step(prepared: Prepared) -> float:
    data, engine = prepared.data, prepared.engine
    client = data.population[data.num_examples[data.population].median(0).indices][None]
    work, start = engine.at(0, data), engine.initial(0)[None]
    work.fit(start, client)  # the first fit also loads what Lightning needs
    begun = monotonic()
    work.fit(start, client)
    local, size = prepared.experiment.local, int(data.num_examples[client])
    batch = size if local.batch_size == "full" else local.batch_size
    return (monotonic() - begun) / (local.epochs * -(-size // batch))


def _stack(plan: Plan) -> str:
    if plan.engine == "trainer" or plan.lanes == 1:
        return "one client after the other"
    return f"{plan.lanes} clients together, {'compiled' if plan.compile else 'not compiled'}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
