"""Indexes classes and their options by parsing source files without importing them, in milliseconds.

Options of classes that are neither ours nor PyTorch's are unknown here, and never refused.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_INDEXED = ("lit_cfl", "torch")  # packages whose source is read


@dataclass(frozen=True)
class IndexedOption:
    """An option as declared in its class.

    Args:
        annotation: Type as written in the source; empty = none.
        module: Module whose names the annotation uses.
    """

    annotation: str
    module: str

    @property
    def names(self) -> list[str]:
        """The plain names in the annotation, such as `StopRule` in `StopRule | None`."""
        return re.findall(r"(?<![.\w'\"])[A-Za-z_]\w*", self.annotation)

    @property
    def literals(self) -> list[str]:
        """The string values of a `Literal` in the annotation."""
        constants = [node.value for node in ast.walk(self._tree) if isinstance(node, ast.Constant)]
        return [value for value in constants if isinstance(value, str)]

    @property
    def members(self) -> list[str]:
        """The members of the option's union type, as written."""
        return [ast.unparse(part) for part in _union(self._tree)]

    @property
    def _tree(self) -> ast.expr:
        return ast.parse(self.annotation or "None", mode="eval").body


@dataclass(frozen=True)
class IndexedClass:
    """A class in a source file.

    Args:
        module: Module that defines the class.
        name: Name of the class.
    """

    module: str
    name: str

    @property
    def is_dataclass(self) -> bool:
        """Whether the class is decorated as a dataclass."""
        return any("dataclass" in ast.unparse(mark) for mark in self._node.decorator_list)

    @property
    def options(self) -> dict[str, IndexedOption]:
        """The class's options by name: arguments of `__init__` or dataclass fields, including inherited ones."""
        return dict(_options_of(self))

    @property
    def is_abstract(self) -> bool:
        """Whether the class cannot be chosen: it names ABC among its bases, or has an abstract method."""
        functions = [part for part in self._node.body if isinstance(part, ast.FunctionDef)]
        marks = [*self._node.bases, *(mark for part in functions for mark in part.decorator_list)]
        return any(getattr(mark, "id", "") in ("ABC", "abstractmethod") for mark in marks)

    @property
    def docstring(self) -> str:
        """The class's docstring; empty if there is none."""
        return ast.get_docstring(self._node) or ""

    def text(self, variable: str) -> str:
        """Reads an annotated class variable that is a string; empty if the class itself does not set it."""
        for part in self._node.body:
            if isinstance(part, ast.AnnAssign) and getattr(part.target, "id", "") == variable and part.value:
                return str(ast.literal_eval(part.value))
        return ""

    def derives_from(self, base: str) -> bool:
        """Returns whether a class of this name is a direct or indirect base."""
        named = any(getattr(parent, "id", "") == base for parent in self._node.bases)
        return named or any(parent.derives_from(base) for parent in self.bases)

    def _own_options(self) -> dict[str, IndexedOption]:
        function = next((part for part in self._node.body if getattr(part, "name", "") == "__init__"), None)
        if isinstance(function, ast.FunctionDef):
            passed_on = self._passed_on(function) if function.args.kwarg else {}
            return passed_on | self._arguments(function.args)
        if not self.is_dataclass:
            return self._inherited_options
        fields, set_later = self._fields()
        return {name: option for name, option in (self._inherited_options | fields).items() if name not in set_later}

    @property
    def bases(self) -> list["IndexedClass"]:
        """The class's bases whose source is indexed."""
        found = [find_class(self.module, base.id) for base in self._node.bases if isinstance(base, ast.Name)]
        return [base for base in found if base is not None]

    @property
    def _node(self) -> ast.ClassDef:
        return _module(self.module).classes[self.name]

    @property
    def _inherited_options(self) -> dict[str, IndexedOption]:
        found: dict[str, IndexedOption] = {}
        for base in reversed(self.bases):
            found |= base.options
        return found

    def _passed_on(self, function: ast.FunctionDef) -> dict[str, IndexedOption]:
        """Returns the base classes' options that `**options` accepts: those not given to `super().__init__`."""
        found = self._inherited_options
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        for call in calls:
            if ast.unparse(call.func) == "super().__init__":
                by_place = [name for base in self.bases for name in base._argument_order()][: len(call.args)]
                given = {*by_place, *(keyword.arg for keyword in call.keywords)}
                found = {name: option for name, option in found.items() if name not in given}
        return found

    def _argument_order(self) -> list[str]:
        """Lists the arguments of the nearest `__init__`, in order."""
        function = next((part for part in self._node.body if getattr(part, "name", "") == "__init__"), None)
        if isinstance(function, ast.FunctionDef):
            return list(self._arguments(function.args))
        return [name for base in self.bases for name in base._argument_order()]

    def _arguments(self, arguments: ast.arguments) -> dict[str, IndexedOption]:
        listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs][1:]
        return {one.arg: IndexedOption(_annotation_text(one.annotation), self.module) for one in listed}

    def _fields(self) -> tuple[dict[str, IndexedOption], set[str]]:
        """Returns the fields that are options, and the names of those set later (`init=False`)."""
        found: dict[str, IndexedOption] = {}
        set_later: set[str] = set()
        for part in self._node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.target.id[0] != "_":
                name, annotation = part.target.id, ast.unparse(part.annotation)
                if part.value is not None and "init=False" in ast.unparse(part.value):
                    set_later.add(name)
                elif "ClassVar" not in annotation:
                    found[name] = IndexedOption(annotation, self.module)
        return found, set_later


@dataclass(frozen=True)
class _Module:
    classes: Mapping[str, ast.ClassDef]
    imported: Mapping[str, tuple[str, str]]  # module and name of each imported name
    assigned: Mapping[str, str]  # aliases, such as `Format = Literal["png", "pdf"]`


@cache
def _options_of(found: IndexedClass) -> Mapping[str, IndexedOption]:
    return found._own_options()


@cache
def find_class(module: str, name: str) -> IndexedClass | None:
    """Finds a class by a name that a module defines or imports; None if its source is not indexed."""
    found = _module(module)
    if name in found.classes:
        return IndexedClass(module, name)
    if name in found.imported:
        other, there = found.imported[name]
        return find_class(other, there) if other != module else None
    return None


def list_classes(module: str) -> list[IndexedClass]:
    """Lists the classes of a module, or of all modules of a package without its subpackages."""
    file = _file_of(module)
    if file is None:
        return []
    files = sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else []
    modules = [f"{module}.{part.stem}" for part in files] or [module]
    return [IndexedClass(one, name) for one in modules for name in _module(one).classes]


def find_path(path: str) -> IndexedClass | None:
    """Finds a class by its full path, such as `torch.optim.SGD`; None if its source is not indexed."""
    module, _, name = path.rpartition(".")
    return find_class(module, name) if module else None


def whole_annotation(option: IndexedOption) -> IndexedOption:
    """Replaces an alias, such as `SelectionRule` or that of `ScoreNames | None`, by its definition."""
    parts = option.members if option.annotation else []
    found = [_definition(part, option.module) for part in parts]
    place = next((module for _, module in found if module != option.module), option.module)
    return IndexedOption(" | ".join(text for text, _ in found), place) if found else option


def _definition(name: str, module: str) -> tuple[str, str]:
    """Follows a name to its definition, if it is an alias. Returns text and module."""
    alias, place = name, module
    while alias.isidentifier():
        found = _module(place)
        if alias in found.assigned:
            return found.assigned[alias], place
        if alias not in found.imported or found.imported[alias][0] == place:
            break
        place, alias = found.imported[alias]
    return name, module


@cache
def _module(name: str) -> _Module:
    file = _file_of(name)
    if file is None:
        return _Module({}, {}, {})
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    # of `if TYPE_CHECKING: ... else: ...`, the part that is executed
    nodes = [*tree.body, *(node for test in tree.body if isinstance(test, ast.If) for node in test.orelse)]
    imported = {
        alias.asname or alias.name: (_absolute(node, package), alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assigned = {
        node.targets[0].id: ast.unparse(node.value)
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    return _Module({node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}, imported, assigned)


def _file_of(module: str) -> Path | None:
    top, *rest = module.split(".")
    found = find_spec(top) if top in _INDEXED else None
    if found is None or not found.origin:
        return None
    place = Path(found.origin).parent.joinpath(*rest)
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.is_file()), None)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """Returns the module of an import, resolving relative imports."""
    if not node.level:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _annotation_text(annotation: ast.expr | None) -> str:
    return "" if annotation is None else ast.unparse(annotation)


def _union(tree: ast.expr) -> list[ast.expr]:
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        return [*_union(tree.left), *_union(tree.right)]
    return [tree]
