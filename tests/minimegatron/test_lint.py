"""Two rules that no run on one device can break visibly: values are read by ctx.read alone, and
one file knows what a CUDA device is.

A tensor's value decides nothing and goes nowhere but through `ctx.read`: reading waits for the
device, and a modeled device has no values. The rules see what is written: annotations, torch
calls, and what comes of them inside one function.
"""

import ast
from collections.abc import Collection
from pathlib import Path

import pytest

import minimegatron

ROOT = Path(minimegatron.__file__).parent
READS = {"item", "tolist", "numpy", "cpu"}
CASTS = {"float", "int", "bool", "complex"}
TENSORS = {"torch.Tensor", "nn.Parameter", "Tensor", "Parameter"}
# Of torch's functions and of a tensor's methods: those that give no tensor.
PLAIN = {"is_grad_enabled", "is_tensor", "is_available", "device", "dim", "size", "numel", "stride",
         "get_num_threads", "data_ptr", "element_size", "is_contiguous", "untyped_storage",
         "_is_mkldnn_bf16_supported"}
TENSOR_FIELDS = {"T", "data", "grad", "mT"}
MAKERS = ("torch.", "F.", "ctx.tensor")
# The one reader, and the control group's flag, which is always on the host.
ALLOWED = {("device/device.py", "read"), ("device/virtual.py", "read"),
           ("exits.py", "any_rank")}
NO_TENSORS = {"torch.utils.data"}  # its data sets hold numpy's arrays here
CUDA_FILES = ("arguments/virtual_device.py", "device/gpus.py")


class Scope:
    """The names that are tensors in one function."""

    def __init__(self, function: ast.FunctionDef | ast.Module) -> None:
        self.names: set[str] = set()
        if not isinstance(function, ast.Module):
            arguments = function.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                note = ast.unparse(argument.annotation) if argument.annotation else ""
                if set(note.replace(" ", "").split("|")) & TENSORS:
                    self.names.add(argument.arg)
        for node in own_nodes(function):
            if isinstance(node, ast.Assign) and self.is_tensor(node.value):
                self.names |= {target.id for target in node.targets if isinstance(target, ast.Name)}

    def is_tensor(self, node: ast.expr) -> bool:
        match node:
            case ast.Name():
                return node.id in self.names
            case ast.Call(func=ast.Attribute(value=value, attr=attr) as func):
                if attr in PLAIN | READS:
                    return False
                if ast.unparse(func).startswith("torch.cuda."):
                    return False
                torch_makes = ast.unparse(func).startswith(MAKERS) and attr.islower()
                return torch_makes or self.is_tensor(value)
            case ast.Attribute(value=value, attr=attr):
                return attr in TENSOR_FIELDS and self.is_tensor(value)
            case ast.Subscript(value=value):
                return self.is_tensor(value)
            case ast.BinOp(left=left, right=right):
                return self.is_tensor(left) or self.is_tensor(right)
            case ast.UnaryOp(op=op, operand=operand):
                return not isinstance(op, ast.Not) and self.is_tensor(operand)
            case ast.Compare(left=left, ops=ops, comparators=others):
                names_only = all(isinstance(op, ast.Is | ast.IsNot) for op in ops)
                return not names_only and any(map(self.is_tensor, (left, *others)))
        return False


def own_nodes(function):
    """The nodes of a function without those of functions inside it, in the order of the text."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield from own_nodes(child)


def reads(node: ast.AST, scope: Scope) -> str | None:
    """Return the way in which this node turns a tensor into a Python value, or None."""
    match node:
        case ast.Call(func=ast.Attribute(attr=attr)) if attr in READS:
            return f".{attr}()"
        case ast.Call(func=ast.Name(id=name), args=[value]) if name in CASTS:
            return f"{name}(tensor)" if scope.is_tensor(value) else None
        case (ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test)
              | ast.Assert(test=test)):
            return "if tensor" if scope.is_tensor(test) else None
        case ast.BoolOp(values=values):
            return "and/or of a tensor" if any(map(scope.is_tensor, values)) else None
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return "not tensor" if scope.is_tensor(operand) else None
    return None


def uses_cuda(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name == "cuda"
        case ast.Constant(value=str(text)):
            return text == "cuda" or text.startswith("cuda:")
    return False


def offences(name: str, text: str, allowed: Collection[tuple[str, str]] = ALLOWED) -> list[str]:
    """FILE:LINE and the offence, of a file's text. allowed: (file, function) that may read."""
    tree, result = ast.parse(text), []
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
               for alias in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    has_tensors = any(module.split(".")[0] == "torch" for module in modules - NO_TENSORS)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.Module | ast.ClassDef):
            continue
        where = getattr(function, "name", "")
        scope = Scope(function) if not isinstance(function, ast.ClassDef) else Scope(ast.Module([]))
        for node in own_nodes(function):
            # A file without torch has no tensors: its .tolist() is numpy's.
            if has_tensors and (name, where) not in allowed and (how := reads(node, scope)):
                result.append(f"{name}:{node.lineno} {how}")
            if name not in CUDA_FILES and uses_cuda(node):
                result.append(f"{name}:{node.lineno} cuda")
    return result


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")),
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_values_are_read_in_one_place_and_cuda_is_known_in_one(path):
    assert offences(str(path.relative_to(ROOT)), path.read_text()) == []


@pytest.mark.parametrize("exception", sorted(ALLOWED))
def test_every_exception_is_needed(exception):
    name, _ = exception
    assert offences(name, (ROOT / name).read_text(), allowed=ALLOWED - {exception})


HEAD = "import torch\ndef f(x: torch.Tensor, y: torch.Tensor | None, n: int, other):\n"
PLANTED = {
    "return x.item()": ".item()", "return other.tolist()": ".tolist()",
    "return x.sum().cpu()": ".cpu()", "return other.numpy()": ".numpy()",
    "return float(x)": "float(tensor)", "return int(x[0] + 1)": "int(tensor)",
    "return bool((x > 0).any())": "bool(tensor)",
    "norm = torch.linalg.vector_norm(x)\n    if norm > 1:\n        return n": "if tensor",
    "while x.abs().max() > n:\n        x = x / 2": "if tensor",
    "return n if y else 0": "if tensor", "assert torch.isfinite(x).all()": "if tensor",
    "return n and x > 0": "and/or of a tensor", "return not x": "not tensor",
    "return [v for v in range(n) if other and float(y)]": "float(tensor)",
    "return x.cuda()": "cuda", "return x.to('cuda')": "cuda", "torch.cuda.synchronize()": "cuda",
    "return torch.device(f'cuda:{n}')": "cuda", "return torch.zeros(1, device='cuda:0')": "cuda",
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_offence_is_found(planted):
    (result,) = offences("model.py", f"{HEAD}    {planted}\n")
    assert result.endswith(f" {PLANTED[planted]}")


@pytest.mark.parametrize("fine", [
    "if y is None:\n        return n", "return ctx.read(x)", "return float(n)",
    "return x if torch.is_grad_enabled() else y", "if x.dim() > 1 and x.numel():\n        return n",
    "if x.shape[0] > n:\n        return x", "return torch.where(x > 0, x, y)",
    "return 'auto, cpu, cuda: where there is one'", "return n if other else x",
])
def test_what_reads_nothing_is_let_be(fine):
    assert offences("model.py", f"{HEAD}    {fine}\n") == []


def test_numpy_may_read_its_arrays_and_the_device_may_know_cuda():
    assert offences("data.py", "import numpy as np\ndef f(x):\n    return x.tolist()\n") == []
    assert offences("device/gpus.py", f"{HEAD}    return torch.cuda.is_available()\n") == []
