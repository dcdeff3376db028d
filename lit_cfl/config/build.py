"""Builds an experiment from its configuration: plain values as in `config.yaml`, which fully define it."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from types import NoneType
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, Namespace, set_parsing_settings
from lightning import LightningModule

from lit_cfl.config import tiny
from lit_cfl.config.catalogue import CLASSES
from lit_cfl.config.explain import find_mistake
from lit_cfl.config.files import with_absolute_paths
from lit_cfl.data import Examples
from lit_cfl.errors import InputError, error_place, suggest
from lit_cfl.experiment import Experiment
from lit_cfl.storage.yaml_files import leaves, parse_yaml

for _module, _ in CLASSES.values():  # the parser finds classes by name once they are imported
    import_module(_module)
OPTIONS = tuple(option.name for option in fields(Experiment))
GROUPS = tuple(f.name for f in fields(Experiment) if is_dataclass(f.default))  # options that are groups of options
_ORDER = (*(name for name in OPTIONS if name != "task"), "task")  # order in `config.yaml`


@dataclass(frozen=True)
class ConfiguredExperiment(Experiment):
    """An experiment built from its configuration.

    Args:
        config: All options, with `code` (folders of the user's own classes) and perhaps `tiny`.
    """

    config: Mapping[str, Any] = field(default_factory=dict)

    def with_options(self, **options: Any) -> "ConfiguredExperiment":
        """Builds the experiment again with these options changed, reusing its unchanged parts.

        Args:
            options: Plain values, as in `config.yaml`; for a group of options, a mapping of those that change.

        Raises:
            InputError: there is no such option, or its value is not plain or cannot be used.
        """
        _require_plain(options)
        groups = {k: v for k, v in options.items() if isinstance(v, Mapping) and "class_path" not in v}
        merged = {name: {**(self.config[name] or {}), **given} for name, given in groups.items()}
        return _build({**self.config, **options, **merged}, self)

    def to_dict(self) -> dict[str, Any]:
        """Returns a copy of the configuration, for `config.yaml`."""
        return dict(self.config)

    def _baseline_options(self) -> Any:
        return self.config["baseline"]


def _require_plain(options: Mapping[str, Any]) -> None:
    """Refuses unknown options, and objects, which `config.yaml` could not hold."""
    for name, value in options.items():
        if name not in (*OPTIONS, "code", "tiny"):
            raise InputError(f"there is no option {name!r}{suggest(name, OPTIONS)}")
        for _, part in leaves(value):
            if not isinstance(part, (bool, int, float, str, tuple, NoneType)):
                raise InputError(
                    f"{name} has {part!r:.60}; give plain values as in a file, such as a class by its name or "
                    "{class_path: NAME, init_args: {...}}"
                )


def build_experiment(config: Mapping[str, Any], read: Namespace | None = None) -> ConfiguredExperiment:
    """Builds an experiment from its configuration.

    Args:
        config: Options of the experiment, with `code` and `tiny` as in `ConfiguredExperiment`. Missing options have
            their defaults.
        read: All options as read by a parser, whose dump is `config`; None = `config` is parsed here.

    Raises:
        InputError: an object cannot be built.
    """
    if read is None or with_absolute_paths(config["data"]) != config["data"]:
        return _build(config, None)
    return _instantiate(config, Namespace({name: read[name] for name in OPTIONS}), {})


def _build(config: Mapping[str, Any], like: ConfiguredExperiment | None) -> ConfiguredExperiment:
    """Builds an experiment, reusing the objects of another experiment for equal options."""
    config = dict(config) | {"data": with_absolute_paths(config["data"])}
    kept = {} if like is None else {k: vars(like)[k] for k in OPTIONS if k in config and config[k] == like.config[k]}
    if "data" not in kept:
        kept.pop("task", None)  # a task reads examples from its data module, so new data need a new task
    parser = option_parser(frozenset(kept))
    given = {name: config[name] for name in OPTIONS if name in config and name not in kept}
    try:
        read = parse_options(parser, given)
    except (ArgumentError, TypeError) as error:
        raise InputError(find_mistake(Experiment, given) or " ".join(str(error).split())) from error
    config |= parse_yaml(parser.dump(read, skip_unset=False, skip_validation=True))
    return _instantiate(config, read, kept)


def _instantiate(config: Mapping[str, Any], read: Namespace, kept: Mapping[str, Any]) -> ConfiguredExperiment:
    """Instantiates the options that were read, and adds the objects kept from another experiment."""
    parser = option_parser(frozenset(kept))
    task = read.pop("task", None)
    made = {**kept, **vars(instantiate(parser, read))}
    if task is not None:
        made["task"] = task_factory(task, lambda: made["data"].examples)
    ordered = {name: config[name] for name in (*_ORDER, *(name for name in config if name not in _ORDER))}
    experiment = ConfiguredExperiment(**made, config=ordered)
    return tiny.shrink(experiment) if config.get("tiny") else experiment


@cache
def option_parser(without: frozenset[str]) -> ArgumentParser:
    """Returns a parser of an experiment's options, without some of them."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Experiment, skip={"task", *without})
    if "task" not in without:
        parser.add_subclass_arguments(LightningModule, "task", required=True)
    return parser


def parse_options(parser: ArgumentParser, given: Mapping[str, Any]) -> Namespace:
    """Parses the options of an experiment.

    Raises:
        ArgumentError: an option cannot be used, or is null although it needs a value.
        TypeError: the parser cannot use a class.
    """
    read: Namespace = parser.parse_object(deepcopy(dict(given)))  # the parser changes lists of classes in place
    if nothing := [name for name in GROUPS if name in read and read[name] is None]:
        raise ArgumentError(None, f"{nothing[0]} is null")
    set_parsing_settings(unset_sentinel=True)  # otherwise the parser accepts null for any option
    try:
        parser.validate(read)
    finally:
        set_parsing_settings(unset_sentinel=False)
    return read


def task_factory(task: Namespace, examples: Callable[[], Examples]) -> Callable[[], LightningModule]:
    """Returns a function that builds the configured LightningModule; unset sizes of its net come from the data."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(LightningModule, "task", required=True)

    def build() -> LightningModule:
        filled = task.clone()
        net = filled.get("init_args.net")
        if isinstance(net, Namespace) and "init_args" in net:
            for name, value in _shape(examples()).items():
                zero_is_unset = name == "vocabulary" or _default_of(net.class_path, name) == 0
                unset = (None, 0) if zero_is_unset else (None,)
                if value is not None and name in net.init_args and net.init_args[name] in unset:
                    net.init_args[name] = value
        module: LightningModule = instantiate(parser, Namespace(task=filled)).task
        return module

    return build


def _default_of(class_path: str, name: str) -> Any:
    """Returns the default of an argument of a class that the parser has imported; None if there is no default."""
    module, _, kind = class_path.rpartition(".")
    argument = signature(getattr(import_module(module), kind)).parameters.get(name)
    return None if argument is None or argument.default is Parameter.empty else argument.default


def _shape(examples: Examples) -> dict[str, object]:
    """Returns the arguments of our nets that follow from the data: input shape, labels, vocabulary."""
    vocabulary = examples.num_tokens if examples.embeddings is None else 0  # with embeddings, nets never see token ids
    shape: dict[str, object] = {"input_shape": list(examples.input_shape), "num_labels": examples.num_outputs or None}
    return shape | {"vocabulary": vocabulary}


def instantiate(parser: ArgumentParser, read: Namespace) -> Namespace:
    """Instantiates a configuration. Raises InputError with the message of the class that failed.

    For an option of several types, the parser's own error says only why the first of them was refused.
    """
    raised: list[tuple[type, Exception]] = []

    def construct(kind: type, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return kind(*args, **kwargs)
        except Exception as error:  # a user's class may raise anything
            raised.append((kind, error))
            raise

    try:
        built: Namespace = parser.instantiate(read, instantiators=[(construct, object, True)])
    except Exception as error:  # the parser wraps it in errors of various types
        if not raised:
            found = find_mistake(Experiment, read.as_dict())
            raise InputError(found or " ".join(str(error).split())) from error
        kind, cause = raised[-1]
        if isinstance(cause, InputError):
            raise cause from error
        raise InputError(f"{kind.__name__} raised {type(cause).__name__}: {cause}{error_place(cause)}") from cause
    return built
