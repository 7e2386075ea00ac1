"""Every private name of torch that the package uses is in private_names.NAMES."""

import ast
from pathlib import Path

import torch
import torch.overrides

import virtualgpu
from virtualgpu.pytorch.private_names import ATTRIBUTES, NAMES, exists

PACKAGE = Path(virtualgpu.__file__).parent
# Private by their spelling only, or not torch's.
PUBLIC = {"_replace", "_getframe", "_exit", "_nb_ops", "_actions"}


def private(name):
    return name.startswith("_") and not name.startswith("__")


def imported(tree):
    """Dotted names of torch by what the file calls them."""
    collected = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.partition(".")[0] == "torch":
                    collected[one.asname or "torch"] = one.name if one.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            collected |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return collected


def dotted(node, names):
    """The dotted name of an attribute of torch's; None for other expressions."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    whole = dotted(node.value, names) if isinstance(node, ast.Attribute) else None
    return whole and f"{whole}.{node.attr}"


def used(tree):
    """Private names of torch's modules and classes, and private attributes of any object."""
    names = imported(tree)
    results = {name for name in names.values() if any(map(private, name.split(".")))}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        name = dotted(node, names)
        if name is None:
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "aten")
            if private(node.attr) and not own:
                results.add(node.attr)
        elif any(map(private, name.split("."))) and not name.startswith("torch.ops."):
            results.add(name)
    return results


def defined(tree):
    """Private names that a file of this package defines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_every_private_name_of_torch_is_listed():
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    ours = {name for tree in trees for name in defined(tree)} | PUBLIC
    ends = {name.rpartition(".")[2] for name in NAMES}.union(ATTRIBUTES)
    missing = set()
    for name in set().union(*map(used, trees)):
        if "." in name:
            if not any(f"{listed}.".startswith(f"{name}.") or f"{name}.".startswith(f"{listed}.")
                       for listed in NAMES):
                missing.add(name)
        elif name not in ours and name not in ends:
            missing.add(name)
    assert not missing


def test_every_listed_name_exists():
    assert [name for name in NAMES if not exists(name)] == []


def test_replaced_attributes_of_tensors_name_their_class_as_torchs_do():
    """Otherwise a rank that imports torch._dynamo late fails with torch 2.11, as under srun."""
    def names():
        getters = torch.overrides.get_default_nowrap_functions.__wrapped__()
        attributes = [vars(torch.Tensor)[name] for name in ("data", "device", "grad", "is_cuda")]
        return [hasattr(one, "__objclass__") for one in (
            *(getter.__self__ for getter in getters), *attributes)]

    (rank,) = virtualgpu.run(names, "h100")
    assert rank.value and all(rank.value)
