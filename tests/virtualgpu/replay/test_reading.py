"""Records that nobody vouches for: every malformed one is refused by a message with the place."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from virtualgpu.launch.cluster import parse
from virtualgpu.replay import BadRecord, price, read_record

from .recorded import by_hand

MM = {"name": "aten.mm.default", "kwargs": {}, "fresh": [[[2, 2], [2, 1], "float32"]],
      "args": [{"tensor": [[2, 2], [2, 1], "float32"], "host": False}] * 2}


def tensor(*spec: object) -> dict:
    return MM | {"args": [{"tensor": list(spec), "host": False}, MM["args"][1]]}


def test_one_that_is_well_formed():
    text = by_hand(1, ["a", 16], ["a", 16], ["a", 16], ["k", 0, 0, [0, 0, 1, 0, 2, 0]], ["s"],
                   operations=[MM])
    first = by_hand(0)
    result = price([read_record(first), read_record(text)], parse("h100:2").topology())
    assert result[1].flops == 16
    assert result[1].live == 48
    assert result[1].bytes == 48


@pytest.mark.parametrize(("entry", "message"), [
    (["a", -1], "integer from 0"), (["a", True], "integer"), (["a", 1.5], "integer"),
    (["a", 2**60], "integer"), (["a"], "`a` has 1 fields, found 0"), (["y"], "begins with one of"),
    ("a", "begins with one of"), ([["a"]], "begins with one of"), (["f", "0"], "integer"),
    (["k", 0, 0, []], "index of operations"), (["k", -1, 0, []], "index of operations"),
    (["w", 0, 0, 1, 0], "index of streams"), (["z", -1], "number from 0"),
    (["z", 1e9], "number from 0"), (["p", 1, 0, 0, []], "index of groups"),
    (["p", 0, 0, 0, [1, 2]], "2 numbers, not 3 for each tensor"),
    (["p", 0, 0, 0, [1, 2, -9]], "integer"), (["c", 0, 1, "", 0, [], [], []], "string"),
    (["c", 0, "x" * 5000, "", 0, [], [], []], "string of at most"),
    (["c", 0, "all_to_all", "", 0, [], [], [[1]]], "bytes for each rank"),
])
def test_entries(entry, message):
    with pytest.raises(BadRecord, match=f"^rank 0, entry 1[:,].*{message}"):
        read_record(by_hand(0, ["s"], entry))


@pytest.mark.parametrize(("operation", "message"), [
    (MM | {"name": "os.system"}, "not the name of an operation"),
    (MM | {"name": "aten.__class__.mro"}, "no operation"),
    (MM | {"name": "aten.mm.__init__"}, "no operation"),
    (MM | {"name": "aten.nothing.default"}, "no operation"),
    (MM | {"name": "aten.empty_like.default"}, "launches no kernel"),
    (MM | {"name": "aten.view.default"}, "no operation aten.view"),
    (MM | {"more": 1}, "missing: .more"), ([], "expected an object"),
    (MM | {"args": MM["args"][:1]}, "invalid arguments"),
    (MM | {"fresh": []}, "returns float32 .2, 2., not nothing"),
    (MM | {"args": [{"list": [{"list": [MM["args"][0]]}]}]}, "a nested list"),
    (MM | {"args": [{"code": "print()"}]}, "not an argument"),
    (MM | {"args": [{"dtype": "Tensor"}]}, "is unknown"),
    (MM | {"args": [2**64]}, "integer from"),
    (tensor([2, 2], [2], "float32"), "a list of 2 items, found 1"),
    (tensor([2, -2], [2, 1], "float32"), "integer from 0"),
    (tensor([2, 2], [2, 1], "float31"), "'float31' is unknown"),
    (tensor([2**40, 2**40], [2**40, 1], "float32"), "larger than any GPU's memory"),
    (tensor([1] * 26, [1] * 26, "float32"), "at most 25"),
    (tensor([2, 2], [2, 1]), "3 items, found 2"),
    (tensor([2, 3], [3, 1], "float32"), "invalid arguments"),
])
def test_operations(operation, message):
    with pytest.raises(BadRecord, match=f"record of rank 0, operation 0.*{message}"):
        read_record(by_hand(0, operations=[operation]))


def laid_out(shape, dtype="float32"):
    """A contiguous tensor's entry in a record."""
    return [shape, [math.prod(shape[at + 1:]) for at in range(len(shape))], dtype]


def called(name, *args, fresh=(), **kwargs):
    """An operation's entry; lists of numbers stand for contiguous fp32 tensors of these shapes."""
    def encoded(value):
        if isinstance(value, tuple):
            return {"list": list(map(encoded, value))}
        if isinstance(value, list):
            spec = value if value and isinstance(value[0], list) else laid_out(value)
            return {"tensor": spec, "host": False}
        return value
    return {"name": f"aten.{name}", "args": list(map(encoded, args)),
            "kwargs": {key: encoded(value) for key, value in kwargs.items()},
            "fresh": list(map(laid_out, fresh))}


CONVOLUTION = (None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
Q, K = [1, 2, 8, 64], [1, 2, 9, 64]
FLASH = "_scaled_dot_product_flash_attention"


@pytest.mark.parametrize(("operation", "message"), [
    (called("mm.default", [2, 3], [4, 2], fresh=[[2, 2]]), "same reduction dim"),
    (called("mm.default", [2, 3], laid_out([3, 2], "bfloat16"), fresh=[[2, 2]]),
     "same dtype, but got: torch.float32 != torch.bfloat16"),
    (called("mm.out", [2, 3], [3, 2], out=[1, 1]), "different shapes"),
    (called("addmm.default", [5], [8, 16], [16, 4], fresh=[[8, 4]]), "broadcast"),
    (called("addmm_.default", [1, 1], [8, 16], [7, 1]), "same reduction dim"),
    (called("bmm.default", [2, 3, 4], [3, 4, 2], fresh=[[2, 3, 2]]), "batch2"),
    (called("convolution.default", [1, 3, 8, 8], [4, 5, 3, 3], *CONVOLUTION,
            fresh=[[1, 4, 6, 6]]), "channel"),
    (called("convolution_backward.default", [1, 4, 9, 9], [1, 5, 8, 8], [4, 5, 3, 3], *CONVOLUTION,
            (True, True, False), fresh=[[1, 5, 8, 8], [4, 5, 3, 3]]),
     r"mismatched shapes: grad .1, 4, 9, 9., output .1, 4, 6, 6."),
    (called(f"{FLASH}.default", Q, K, Q),
     "mismatched shapes: query .1, 2, 8, 64., key .1, 2, 9, 64."),
    (called(f"{FLASH}_backward.default", K, Q, Q, Q, Q, [1, 2, 8], None, None, 8, 8,
            {"float": True}, False, laid_out([2], "uint64"), laid_out([], "uint64")),
     "mismatched shapes: grad .1, 2, 9, 64."),
    (called("add.Tensor", [4], [5], fresh=[[4]]), "broadcast"),
    (called("add_.Tensor", [4], [5]), "broadcast"),
    (called("cat.default", ([4, 4], [3, 5]), fresh=[[7, 4]]), "match except in dimension"),
    (called("sum.dim_IntList", [4, 4], (7,), fresh=[[4]]), "out of range"),
    (called("topk.default", [4, 4], 2**62), "k not in range"),
    (called("arange.default", 2**40, fresh=[[1]]), "returns int64 .1099511627776., not float32"),
    (called("_foreach_add_.List", ([4],), ([9],)), "broadcast"),
    (called("mm.default", [2, 3], [3, 2], [3, 2], fresh=[[2, 2]]), "at most 2 argument"),
    (called("add.Tensor", "a", "b"), "the operation has no tensors"),
    (called("mul.Tensor", [4], {"other": "socket"}, fresh=[[4]]), "'socket' is unknown"),
    (called("neg.default", [4, 4]) | {"fresh": [[[4, 4], [0, 1], "float32"]]},
     "elements share memory"),
    (called("neg_.default", [[4, 4], [0, 1], "float32"]), "elements share memory"),
    (called("add.Tensor", [4], {"dtype": "float32"}, fresh=[[4]]), "other: expected Tensor"),
    (called("sum.dim_IntList", [4, 4], "0", fresh=[[4]]), "dim: expected"),
    (called("add.Tensor", [4], other=[4], fresh=[[4]]), "not an argument by name"),
], ids=lambda value: value.get("name") if isinstance(value, dict) else "")
def test_operands_that_do_not_fit_together(operation, message):
    """Each would count FLOPs, bytes, or memory that no program can have."""
    with pytest.raises(BadRecord, match=f"record of rank 0, operation 0.*{message}"):
        read_record(by_hand(0, operations=[operation]))


def test_what_depends_on_values_is_taken_as_it_is():
    read_record(by_hand(0, operations=[
        called("nonzero.default", [4]) | {"fresh": [laid_out([3, 1], "int64")]},
        called("masked_select.default", [4], laid_out([4], "bool"), fresh=[[3]]),
        called("arange.default", {"float": True}, fresh=[[7]], device={"other": "device"})]))


@pytest.mark.parametrize(("text", "message"), [
    ("", "not JSON"), ("[]", "expected an object"), ("{}", "wrong or missing"), (b"{}", "bytes"),
    ('{"a": 1, "a": 2}', "occurs twice"), ('{"a": NaN}', "NaN is not a number"),
    ('{"a": -Infinity}', "not a number"), ("[" * 100_000, "not JSON"),
    (f'{{"a": {"9" * 5000}}}', "not JSON"), (by_hand(2), "integer from 0 to 1, found 2"),
    (by_hand(0, version=2), "version 2; this program reads version 1"),
    (by_hand(0, version=True), "format"), (by_hand(0, format="pickle"), "'pickle'"),
    (by_hand(0, world=2**30), "integer from 1"),
    (by_hand(0, streams=[]), "expected at least one stream"),
    (by_hand(0, streams=["a", "a"]), "and different names"), (by_hand(0, streams=[1]), "string"),
    (by_hand(0, entries={}), "expected a list"),
    (by_hand(0, groups=({"name": "x", "ranks": [1]},)), "0 among them"),
    (by_hand(0, groups=({"name": "x", "ranks": [0, 0]},)), "different ranks"),
    (by_hand(0, groups=({"name": "x", "ranks": [0, 2]},)), "integer from 0 to 1"),
    (by_hand(0, ["z", 0]).replace('"z", 0', '"z", 1e999'), "number from 0"),
])
def test_documents(text, message):
    with pytest.raises(BadRecord, match=message):
        read_record(text)


def test_too_much_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr("virtualgpu.replay.reading.MOST_CHARACTERS", 100)
    with pytest.raises(BadRecord, match="at most 100 characters"):
        read_record(by_hand(0))
    monkeypatch.undo()
    monkeypatch.setattr("virtualgpu.replay.reading.MOST_ENTRIES", 2)
    with pytest.raises(BadRecord, match="entries: expected a list of at most 2 items, found 3"):
        read_record(by_hand(0, ["s"], ["s"], ["s"]))


@pytest.mark.parametrize(("records", "message"), [
    ((by_hand(0), by_hand(0)), "different ranks"), ((by_hand(1),), "0 among them"),
    ((by_hand(0, world=4),), "a job of 4 ranks; this one has 2"), ((), "0 among them")])
def test_jobs(records, message):
    with pytest.raises(BadRecord, match=message):
        price(list(map(read_record, records)), parse("h100:2").topology())




def test_a_process_that_ran_no_program_reads_rms_norm():
    reading = ("from virtualgpu.replay.operations import _resolve\n"
               "print(_resolve('aten._fused_rms_norm.default', 'here'))")
    done = subprocess.run([sys.executable, "-c", reading], capture_output=True, text=True)
    assert done.stdout.strip() == "aten._fused_rms_norm.default", done.stderr
