"""A command's options as a tree of names: finds unknown options, similar names, and options that take lists.

The options are read from source files ([option_index](option_index.py)), so that a misspelt option is refused at once.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lit_cfl.config import catalogue
from lit_cfl.config.given_options import Typed, merge_options
from lit_cfl.config.option_index import IndexedClass, IndexedOption, find_class, find_path, whole_annotation
from lit_cfl.errors import InputError, suggest, write_space

COMMAND_ONLY = (
    "config",
    "seed",
    "run_dir",
    "resume",
    "new_plan",
    "tiny",
    "dry_run",
    "quiet",
    "json",
    "code",
    "data_commit",
    "format",
)  # options of the command, not of the experiment, as the parser names them
OF_RUN = (*COMMAND_ONLY, "dry-run", "made_in_python")  # as typed, and including entries of recorded configurations
OF_DATA = ("out",)
OF_TUNE = ("config", "study_dir", "resume", "ray", "dry-run", "dry_run")
_OURS = ("lit_cfl.", "torch.", "lightning.")
KIND_OF_KEY = {
    "algorithm": "algorithms",
    "baseline": "algorithms",
    "data": "data",
    "parts": "data",
    "partition": "partitions",
    "skew": "skews",
    "shift": "shifts",
    "net": "nets",
    "task": "tasks",
}
_KIND_OF_BASE = {base: kind for kind, (_, base) in catalogue.CLASSES.items()}
_ELSEWHERE = {
    "clients_per_round": "cohort_size",
    "clients": "cohort_size",
    "participation": "cohort_size",
    "fraction": "cohort_size",
    "num_rounds": "rounds",
    "communication_rounds": "rounds",
    "global_rounds": "rounds",
    "global_epochs": "rounds",
    "local_epochs": "local.epochs",
    "local_steps": "local.epochs",
    "learning_rate": "task.optimizer.lr",
    "lr": "task.optimizer.lr",
    "local_lr": "task.optimizer.lr",
    "model": "task.net",
    "dataset": "data",
    "gpu": "device",
    "gpus": "device",
    "random_seed": "seed",
    "output_dir": "run_dir",
    "out_dir": "run_dir",
    "save_dir": "run_dir",
    "num_samples": "limits.trials",
    "n_trials": "limits.trials",
}  # names used by other programs
_COLUMNS = ("label", "labels", "label_column", "target", "target_column", "client_column")  # of other programs
_LOSS = (
    "loss",
    "loss_fn",
    "criterion",
    "class_weights",
    "class_weight",
    "loss_weights",
    "weights",
    "weight",
)  # options of a task in other programs
_SYMBOLS = {
    "alpha": "pretrain_scale",
    "k": "num_clusters",
    "lam": "lambda_",
    "lambda": "lambda_",
    "m": "num_clusters",
}  # names of options in the papers
_BY_OPTIONS = {
    "fedadagrad": "--server torch.optim.Adagrad --server.lr 0.01 --server.eps 0.001",
    "fedadam": "--server torch.optim.Adam --server.lr 0.01 --server.eps 0.001",
    "fedavgm": "--server torch.optim.SGD --server.lr 1.0 --server.momentum 0.9",
    "fedbn": "--personal 'batchnorm[*]'",
    "fedper": "--personal 'linear[-1]'",
}  # methods that are FedAvg with an option
_WHO_DIVIDES = (
    "clients come with the data or from a partition, such as --data.partition IID --data.partition.num_clients 10"
)
_FIRST = ("algorithm", "task", "local", "data")  # parts searched first for an option that several have
_HIDDEN, _GIVEN = ("params",), "Optimizer"  # constructor arguments, by name and by type, that are never options
_PARTS = re.compile(r"[^.]+")
_OF_ARRAYS = re.compile("csv|table|frame|array|numpy|npz", re.IGNORECASE)  # in names of classes of other libraries
_NEARLY_EQUAL = 0.75  # similarity of a misspelled algorithm to its name


@dataclass(frozen=True)
class UnknownOption:
    """An option that does not exist, with the class or group that lacks it.

    Args:
        option: Dotted name.
        part: Unknown part of the name.
        owner: Class or group that lacks the option; empty = the command.
        known: Options of the owner.
    """

    option: str
    part: str
    owner: str
    known: Sequence[str]


class OptionTree:
    """The options of an experiment or a study, including those of the chosen classes.

    Args:
        root: Class of the experiment or of the study.
        own: Further options, of the command.
        chosen: Selected classes by option, such as `algorithm`; short names or full paths.
    """

    def __init__(self, root: IndexedClass, own: Sequence[str], chosen: Mapping[str, str]) -> None:
        self._own, self.chosen = own, chosen
        self._root = root.options

    def look_up(self, option: str) -> IndexedOption | UnknownOption | None:
        """Looks up an option by its dotted name; None if the indexed source cannot tell whether it exists."""
        known, owner, path = dict(self._root), "", ""
        found: IndexedOption | None = None
        parts = [part for part in _PARTS.findall(option.removesuffix("+")) if part != "init_args"]
        if parts and parts[0] in self._own:
            return None
        for part in parts:
            if part in ("help", "class_path", "dict_kwargs"):
                return None
            if part not in known:
                return UnknownOption(option, part, owner, [*known, *([] if owner else self._own)])
            found, path = known[part], f"{path}.{part}" if path else part
            below = self._below(path, found)
            if below is None:
                return found if part == parts[-1] and path == ".".join(parts) else None
            owner, known = below
        return found

    def kind_of(self, path: str) -> str | None:
        """Returns the kind of class that an option selects, such as `algorithms`; None for any other option."""
        option = self.look_up(path)
        return self._kind(path, option) if isinstance(option, IndexedOption) else None

    def names(self) -> Iterator[str]:
        """Yields the dotted names of all known options, the most important parts first."""
        first = [name for name in _FIRST if name in self._root]
        for name in [*first, *(name for name in self._root if name not in first)]:
            yield from self._names(name, self._root[name])
        yield from (name for name in self._own if name not in ("code", "data_commit", "format", "made_in_python"))

    def guess_option(self, option: str) -> str | None:
        """Guesses the option meant by an unknown name; None if no name is similar."""
        last, names = option.rpartition(".")[2], list(self.names())
        if _ELSEWHERE.get(last) in names:
            return _ELSEWHERE[last]
        by_last: dict[str, str] = {}
        # names with fewer dots first, so that local.batch_size is preferred
        for name in sorted(names, key=lambda name: name.count(".")):
            by_last.setdefault(name.rpartition(".")[2], name)
        if last in by_last:
            return by_last[last]
        part, _, rest = option.partition(".")
        if rest and len(whole := [name for name in names if name.endswith(f".{part}")]) == 1:
            return f"{whole[0]}.{rest}"  # for example task.net.width for net.width, an option of a user's class
        near = get_close_matches(option.lower(), names, n=1, cutoff=0.75)
        near = near or [by_last[word] for word in get_close_matches(last.lower(), by_last, n=1, cutoff=0.75)]
        longer = [name for name in names if len(option) >= 4 and name.startswith(f"{option.lower()}_")]
        near = near or (longer if len(longer) == 1 else [])  # for example cohort_size for cohort
        return near[0] if near else None

    def _below(self, path: str, option: IndexedOption) -> tuple[str, dict[str, IndexedOption]] | None:
        """Returns the name and the options of an option's class or group; None if unknown."""
        kind = self._kind(path, option)
        if kind is not None or path in self.chosen:
            name = self.chosen.get(path)
            found = None if name is None else class_of(name, kind)
            if found is None:
                return None
            hidden = [k for k, v in found.options.items() if k in _HIDDEN or v.annotation == _GIVEN]
            return found.name, {k: v for k, v in found.options.items() if k not in hidden}
        for name in option.names:
            group = find_class(option.module, name)
            if group is not None and group.is_dataclass:
                return path, group.options
        return None

    def _kind(self, path: str, option: IndexedOption) -> str | None:
        if path == "task":
            return "tasks"
        return next((_KIND_OF_BASE[name] for name in option.names if name in _KIND_OF_BASE), None)

    def _names(self, path: str, option: IndexedOption) -> Iterator[str]:
        yield path
        below = self._below(path, option)
        for name, part in (below[1] if below is not None else {}).items():
            yield from self._names(f"{path}.{name}", part)


def class_of(name: str, kind: str | None) -> IndexedClass | None:
    """Finds a class by its full path, or by its short name among those of a kind (None = schedulers of PyTorch)."""
    if "." in name:
        return find_path(name)
    return find_class("torch.optim.lr_scheduler" if kind is None else catalogue.CLASSES[kind][0], name)


def experiment_tree(contents: Sequence[Any], words: Sequence[str], own: Sequence[str] = OF_RUN) -> OptionTree:
    """Makes the option tree of `lit-cfl run`.

    Args:
        contents: Contents of the experiment's files, in order.
        words: Words of the command line, which take precedence.
        own: Options of the command.
    """
    chosen = dict(_chosen_classes(merge_options(contents, words)))
    return OptionTree(IndexedClass("lit_cfl.experiment", "Experiment"), own, chosen)


def study_tree() -> OptionTree:
    """Makes the option tree of `lit-cfl tune`."""
    return OptionTree(IndexedClass("lit_cfl.tune.study", "Study"), OF_TUNE, {})


def _chosen_classes(content: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields each option that selects a class, with the name of the class."""
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        inner = path if key == "init_args" else f"{path}.{key}" if path else str(key)
        if isinstance(value, str) and (key == "class_path" or _names_class(inner)) and not _is_null(value):
            yield path if key == "class_path" else inner, value
        yield from _chosen_classes(value, inner)


def _is_null(value: str) -> bool:
    """Returns whether a command-line value names no class: null, or not a possible class name."""
    return isinstance(value, Typed) and (value in ("null", "None") or not re.fullmatch(r"[A-Za-z_][\w.]*", value))


def _names_class(option: str) -> bool:
    return option.rpartition(".")[2] in (*KIND_OF_KEY, "optimizer", "lr_schedule", "server")


def require_known_options(tree: OptionTree, options: Sequence[str], command: str, where: str = "") -> None:
    """Raises InputError for unknown options, with the option that was probably meant."""
    for option in options:
        found = tree.look_up(option)
        if isinstance(found, UnknownOption):
            raise InputError(f"{where}{describe(tree, found, command)}")


def describe(tree: OptionTree, unknown: UnknownOption, command: str) -> str:
    """Describes an unknown option in one line, with the option that was probably meant."""
    names = set(tree.names())
    missing = f"{f'{unknown.owner} has' if unknown.owner else 'there is'} no option {unknown.part!r}"
    divides = "data.partition" in names and not any(name.endswith(".num_clients") for name in names)
    if unknown.part == "num_clients" and divides:
        return f"{missing}: {_WHO_DIVIDES}"
    if space := write_space(unknown.part):  # YAML reads {epochs:5} as a key without a value
        return f"{missing}{space}"
    if unknown.owner:
        near = suggest_option(unknown.part, unknown.owner, unknown.known)
        return f"{missing}{near}. Its options: {', '.join(unknown.known)}"
    if unknown.option in ("mode", "direction") and "metric" in names:  # options of a study in other programs
        return f"there is no option {unknown.option!r}; leave it out: the metric's score has its direction"
    if unknown.option == "metric" and "task" in names:
        return "there is no option 'metric'; tables and figures show the first of task.scores"
    meant, net = tree.guess_option(unknown.option), tree.chosen.get("task.net", "")
    guess = f" (did you mean --{meant}?)" if meant else ""
    if not meant and "." in net and not net.startswith(_OURS):
        guess = f" (an option of {net} is written --task.net.{unknown.option})"
    return f"there is no option {unknown.option!r}{guess}. See {command} --help"


def suggest_option(name: str, owner: str, known: Iterable[str]) -> str:
    """Returns a hint about an option that a class lacks: the algorithms that have it, or a similar name.

    Args:
        name: Option that the class lacks, or its symbol in a paper, such as `lambda`.
        owner: Name of the class.
        known: Options of the class.
    """
    symbol = _SYMBOLS.get(name.lower(), name)
    parts = _ELSEWHERE.get(name.lower(), "").split(".")
    for meant in (symbol, *(".".join(parts[k:]) for k in range(len(parts)))):
        if meant.partition(".")[0] in known:
            return f" (did you mean {meant}?)"
    algorithms = {one: class_of(one, "algorithms") for one in catalogue.names("algorithms")}
    others = [one for one, found in algorithms.items() if found is not None and symbol in found.options]
    if parts != [""] and not others:
        return f" (did you mean --{'.'.join(parts)}?)"
    if name in _COLUMNS and owner == "ArrayData":
        return " (name the columns of a table: columns: {y: NAME, client: NAME})"
    if name in _LOSS and owner in catalogue.names("tasks"):
        return " (for another loss, derive a class from it and define its method losses: docs/own_model.md)"
    if owner not in algorithms or not others:
        return suggest(name, known)
    return f" ({'' if symbol == name else f'{symbol} is '}an option of {', '.join(others)})"


def require_known_classes(tree: OptionTree, called: Mapping[str, str] | None = None) -> None:
    """Raises InputError for an unknown class name without dots, unless another option names a user's class.

    Args:
        tree: Tree of options with the selected classes.
        called: Name of an option in the message, if not its own.

    Raises:
        InputError: a class is unknown; the message names the most similar one.
    """
    for path, name in tree.chosen.items():
        require_known_class(tree, path, (called or {}).get(path, path.rpartition(".")[2]), name)


def require_known_class(tree: OptionTree, path: str, called: str, name: str) -> None:
    """Raises InputError if an option names an unknown class; see `require_known_classes`."""
    if any("." in chosen and not chosen.startswith(_OURS) for chosen in tree.chosen.values()):
        return  # a user's module may define more names
    kind = KIND_OF_KEY.get(path.rpartition(".")[2])
    if kind is not None and "." not in name and class_of(name, kind) is None:
        raise InputError(unknown_class(called, name, kind))


def unknown_class(key: str, name: str, kind: str) -> str:
    """Describes an unknown class in one line, with the names of the available classes."""
    known = catalogue.names(kind)
    if kind == "algorithms" and (options := _BY_OPTIONS.get(name.lower())):
        where = "" if key == name else f"{key}: "
        in_compare = f"{name}=FedAvg {options.replace('--', f'--{name}.')}"
        return (
            f"{where}{name} is FedAvg with an option; give --algorithm FedAvg {options}, or in lit-cfl compare "
            f"{in_compare}"
        )
    own = "name a class of your own by its full path, such as my_file.MyClass"
    mine = next((file.stem for file in sorted(Path().glob("*.py")) if _defines(file, name)), None)
    hint = f" (did you mean {mine}.{name}?)" if mine is not None else _similar_class(name, kind, known)
    return f"{key}: {name!r} is not known{hint}. Known: {', '.join(known)}; {own}"


def _similar_class(name: str, kind: str, known: Sequence[str]) -> str:
    if "(" in name:
        return f" (write {name.partition('(')[0]} without parentheses; arguments go under init_args)"
    if kind == "data" and _OF_ARRAYS.search(name):
        return " (did you mean ArrayData?)"
    # short names of methods resemble each other: SCAFFOLD does not mean CFL
    return suggest(name, known, _NEARLY_EQUAL if kind == "algorithms" else 0.5)


def _defines(file: Path, name: str) -> bool:
    """Returns whether a Python file defines a class of this name, without running the file."""
    try:
        return (
            name != "" and re.search(rf"^class {re.escape(name)}\b", file.read_text("utf-8"), re.MULTILINE) is not None
        )
    except (OSError, UnicodeDecodeError):
        return False


def is_list(option: IndexedOption) -> bool:
    """Returns whether an option takes a list."""
    return any(re.match(r"(list|List|Sequence|tuple|Tuple|Iterable)\[", member) for member in _members(option))


def is_nested_list(option: IndexedOption) -> bool:
    """Returns whether an option takes a list of lists."""
    return any(re.match(r"(list|Sequence|tuple)\[(list|Sequence|tuple)\[", member) for member in _members(option))


def takes_text(option: IndexedOption, value: str) -> bool:
    """Returns whether an option that takes a list also accepts this text in place of a list."""
    whole = whole_annotation(option)
    if value in ("null", "None") or value in whole.literals:
        return True
    single = [member for member in _members(option) if "[" not in member and member != "None"]
    return bool(single)


def holds_texts(option: IndexedOption) -> bool:
    """Returns whether the entries of a list are texts, which YAML must not read as numbers."""
    return any(re.match(r"\w+\[str", member) for member in _members(option))


def _members(option: IndexedOption) -> list[str]:
    return whole_annotation(option).members
