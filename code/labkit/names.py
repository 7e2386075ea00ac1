"""Find the global names that a cell's Python code binds and reads, scope by scope."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
OWN_SCOPE = (*FUNCTIONS, ast.ClassDef, ast.Lambda)
CHANGING = frozenset(("add", "append", "clear", "difference_update", "discard", "extend", "fill",
                      "insert", "intersection_update", "pop", "popitem", "remove", "reverse",
                      "setdefault", "sort", "symmetric_difference_update", "update"))


@dataclass(frozen=True)
class NameUse:
    """A global name that is read. `node` is its ast.Name; lines count from 1 in the cell."""

    name: str
    line: int
    node: ast.Name


@dataclass(frozen=True)
class Names:
    """The global names that a piece of code binds, uses, and imports.

    Attributes:
        binds: the line of the first binding by name.
        uses: names that are read before any binding.
        imports: the dotted path by name bound.
        stars: lines of `from x import *`.
    """

    binds: dict[str, int]
    uses: tuple[NameUse, ...]
    imports: dict[str, str]
    stars: tuple[int, ...] = ()  # lines of `from x import *`


@dataclass
class _Scope:
    kind: str  # module, class, function, comprehension
    parent: _Scope | None = None
    bound: set[str] = field(default_factory=set)  # a function's names are bound from its start
    declared_global: set[str] = field(default_factory=set)


def analyse(tree: ast.Module) -> Names:
    """Return the names of a whole cell.

    Order matters at its top level, but not in functions, which run later.
    """
    walker = _Walker()
    walker.visit_all(tree.body, _Scope("module"))
    uses = tuple(use for use, at_once in walker.uses if at_once or use.name not in walker.binds)
    return Names(walker.binds, uses, walker.imports, tuple(walker.stars))


class _Walker:
    def __init__(self) -> None:
        self.binds: dict[str, int] = {}
        self.uses: list[tuple[NameUse, bool]] = []  # with whether it is read while the cell runs
        self.imports: dict[str, str] = {}
        self.stars: list[int] = []

    def visit_all(self, nodes: Iterable[ast.AST | None], scope: _Scope) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node, scope)

    def visit(self, node: ast.AST, scope: _Scope) -> None:
        if isinstance(node, FUNCTIONS):
            self._function(node, scope)
        elif isinstance(node, ast.Lambda):
            self._arguments(node.args, scope)
            self._body([node.body], node.args, scope)
        elif isinstance(node, ast.ClassDef):
            self._class(node, scope)
        elif isinstance(node, COMPREHENSIONS):
            self._comprehension(node, scope)
        elif isinstance(node, ast.Name):
            self._name(node, scope)
        elif isinstance(node, ast.NamedExpr):
            self.visit(node.value, scope)
            self._bind(node.target.id, node.lineno, _no_comprehension(scope))
        elif isinstance(node, ast.Global):
            scope.declared_global |= set(node.names)
        else:
            self._statement(node, scope)

    def _statement(self, node: ast.AST, scope: _Scope) -> None:
        """Visit a statement that needs its own order (values before targets), or binds without an
        ast.Name.
        """
        if isinstance(node, ast.Assign):
            self.visit_all([node.value, *node.targets], scope)
        elif isinstance(node, ast.AnnAssign):
            self.visit_all([node.annotation, node.value], scope)
            if node.value is not None or not isinstance(node.target, ast.Name):
                self.visit(node.target, scope)
        elif isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name):
                self._read(node.target, scope)
            self.visit_all([node.value, node.target], scope)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self.visit_all([node.iter, node.target, *node.body, *node.orelse], scope)
        else:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node, scope)
            for name in _bound_by(node):
                self._bind(name, getattr(node, "lineno", 1), scope)
            self.visit_all(ast.iter_child_nodes(node), scope)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope) -> None:
        self.visit_all(node.decorator_list, scope)
        self._arguments(node.args, scope)
        self.visit_all([node.returns], scope)
        self._bind(node.name, node.lineno, scope)
        self._body(node.body, node.args, scope)

    def _arguments(self, args: ast.arguments, scope: _Scope) -> None:
        """Visit defaults and annotations in the scope around the function."""
        self.visit_all([*args.defaults, *args.kw_defaults], scope)
        self.visit_all([argument.annotation for argument in _parameters(args)], scope)

    def _body(self, body: list, args: ast.arguments, scope: _Scope) -> None:
        inner = _Scope("function", scope)
        elsewhere: set[str] = set()
        for node in _own_nodes(body):
            if isinstance(node, ast.Global):
                inner.declared_global |= set(node.names)
            elif isinstance(node, ast.Nonlocal):
                elsewhere |= set(node.names)
            inner.bound |= set(_bound_by(node))
        inner.bound -= elsewhere | inner.declared_global
        inner.bound |= {argument.arg for argument in _parameters(args)}
        self.visit_all(body, inner)

    def _class(self, node: ast.ClassDef, scope: _Scope) -> None:
        self.visit_all([*node.decorator_list, *node.bases, *node.keywords], scope)
        self.visit_all(node.body, _Scope("class", scope))
        self._bind(node.name, node.lineno, scope)

    def _comprehension(self, node: ast.expr, scope: _Scope) -> None:
        inner = _Scope("comprehension", scope)
        for generator in node.generators:
            inner.bound |= {name for part in ast.walk(generator.target) for name in _bound_by(part)}
        self.visit(node.generators[0].iter, scope)  # evaluated outside
        for generator in node.generators:
            self.visit_all([None if generator is node.generators[0] else generator.iter,
                            generator.target, *generator.ifs], inner)
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.visit_all(values, inner)

    def _name(self, node: ast.Name, scope: _Scope) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node, scope)
        else:
            self._bind(node.id, node.lineno, scope)

    def _read(self, node: ast.Name, scope: _Scope) -> None:
        if not _is_global(node.id, scope):
            return
        at_once = _runs_at_once(scope)
        if at_once and node.id in self.binds:
            return
        self.uses.append((NameUse(node.id, node.lineno, node), at_once))

    def _bind(self, name: str, line: int, scope: _Scope) -> None:
        if scope.kind == "module" or name in scope.declared_global:
            self.binds.setdefault(name, line)
        elif scope.kind == "class":
            scope.bound.add(name)  # from here on only

    def _import(self, node: ast.Import | ast.ImportFrom, scope: _Scope) -> None:
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(node.lineno)
            elif isinstance(node, ast.Import):
                path = alias.name if alias.asname else alias.name.partition(".")[0]
                self.imports[alias.asname or path] = path
            else:
                module = "." * node.level + (node.module or "")
                self.imports[alias.asname or alias.name] = f"{module}.{alias.name}"


def changed(tree: ast.Module, names: Names) -> Iterator[tuple[str, str, bool]]:
    """Yield each global name whose value is changed without a binding, the code that changes it,
    and whether that is a method of the name itself: x[0] = 1, x.append(1), setattr(x, "y", 1).

    Args:
        tree: a whole cell.
    """
    read = {id(use.node) for use in names.uses}
    for node in ast.walk(tree):
        target = node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args \
                and node.func.id in ("setattr", "delattr"):
            target = node.args[0]
        elif not (isinstance(node, ast.Subscript | ast.Attribute) and (
                not isinstance(node.ctx, ast.Load)
                or (isinstance(node, ast.Attribute) and node.attr in CHANGING))):
            continue
        while isinstance(target, ast.Subscript | ast.Attribute):
            target = target.value
        if id(target) in read or getattr(target, "id", "") in names.imports:
            yield target.id, ast.unparse(node), (isinstance(node, ast.Attribute)
                                                 and isinstance(node.ctx, ast.Load)
                                                 and node.value is target)


def imported(tree: ast.Module | None) -> Iterator[str]:
    """Yield the dotted names of all modules and names that a cell imports."""
    for node in ast.walk(tree or ast.Module([], [])):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that this node itself binds in its scope."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            if alias.name != "*":
                yield alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import)
                                       else alias.name)
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def _own_nodes(body: list) -> Iterator[ast.AST]:
    """Yield the nodes in this function's own scope.

    The bodies of nested functions and classes are not part of it; of comprehensions, only the
    targets of `:=` are.
    """
    for node in body:
        yield node
        if isinstance(node, OWN_SCOPE):
            continue
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, COMPREHENSIONS):
            children = [part.target for part in ast.walk(node) if isinstance(part, ast.NamedExpr)]
        yield from _own_nodes(children)


def _parameters(args: ast.arguments) -> list[ast.arg]:
    return [*args.posonlyargs, *args.args, *args.kwonlyargs,
            *[argument for argument in (args.vararg, args.kwarg) if argument]]


def _is_global(name: str, scope: _Scope) -> bool:
    current: _Scope | None = scope
    while current is not None and current.kind != "module":
        if name in current.declared_global:
            return True
        # A class's names are seen in its body only, not in its methods.
        if name in current.bound and (current.kind != "class" or current is scope):
            return False
        current = current.parent
    return True


def _runs_at_once(scope: _Scope) -> bool:
    """Return whether code of this scope runs when its cell does, and not when it is called."""
    current: _Scope | None = scope
    while current is not None:
        if current.kind == "function":
            return False
        current = current.parent
    return True


def _no_comprehension(scope: _Scope) -> _Scope:
    """Return the scope in which `:=` binds."""
    while scope.kind == "comprehension":
        scope = scope.parent
    return scope
