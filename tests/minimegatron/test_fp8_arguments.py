"""Flags of FP8 that do not fit together, the sizes, or the GPU are refused."""

import shlex

import pytest

from minimegatron.arguments import parse_arguments
from minimegatron.device.gpus import require_recipe
from minimegatron.errors import UserError

from .test_arguments import GOOD
from .test_fp8 import ON

FIRST_LAST = f"{ON} tensorwise --first-last-layers-bf16"
REFUSED = {
    "--fp8-format hybrid": "--fp8-format: without --fp16 or --bf16",
    "--bf16 --fp8-format e5m2": "invalid choice: 'e5m2'",
    f"{ON} current": "invalid choice: 'current'",
    "--bf16 --fp8-recipe mxfp8": "belongs to --fp8-format, which is not given",
    "--bf16 --no-fp8-wgrad": "--fp8-wgrad belongs to --fp8-format",
    f"{ON} delayed --fp8-margin 65": "--fp8-margin 65: must be from -64 to 64",
    f"{ON} delayed --fp8-amax-history-len 0": "--fp8-amax-history-len 0: must be at least 1",
    f"{ON} delayed --fp8-amax-compute-algo mean": "invalid choice: 'mean'",
    f"{ON} mxfp8 --fp8-margin 1": "--fp8-margin 1 is for --fp8-recipe delayed, not mxfp8",
    f"{ON} delayed --first-last-layers-bf16": "Delayed scaling does not support first / last",
    f"{ON} tensorwise --num-layers-at-end-in-bf16 2": "belongs to --first-last-layers-bf16",
    f"{FIRST_LAST} --num-layers-at-end-in-bf16 5": r"per pipeline stage \(4\); nearest: 4",
    f"{FIRST_LAST} --num-layers-at-start-in-bf16 -1": "must not be negative",
    f"{ON} mxfp8 --seq-length 8": "x --micro-batch-size is 16: .* multiple of 32; nearest: 32",
    f"{ON} blockwise": "--seq-length x --micro-batch-size is 64: .* blockwise needs a multiple of "
                       "128",
    f"{ON} blockwise --hidden-size 256 --kv-channels 64 --micro-batch-size 8 --ffn-hidden-size 192":
        "--ffn-hidden-size / --tensor-model-parallel-size is 192: .* 128; nearest: 128 or 256",
    f"{ON} tensorwise --ffn-hidden-size 72": "is 72: .* a multiple of 16; nearest: 64 or 80",
    f"{ON} delayed --device virtual:a100-80gb": "--fp8-recipe delayed: the virtual a100-80gb "
                                                "cannot run .* nearest GPU model .* is h100-80gb",
    f"{ON} mxfp8 --device virtual:h200": "Tensor Cores that read MX block scales.* is b200",
    f"{ON} delayed --fp8-param-gather": "only supported with distributed optimizer; nearest: --use",
    f"{ON} mxfp8 --fp8-param-gather --use-distributed-optimizer": "shards do not consist of whole",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_refused(flags):
    with pytest.raises(UserError, match=REFUSED[flags]):
        parse_arguments(shlex.split(GOOD + flags), {})


def test_a_cuda_device_that_lacks_a_recipe_is_refused():
    require_recipe("delayed", (8, 9))
    with pytest.raises(UserError, match=r"--fp8-recipe mxfp8 needs .* Blackwell \(compute "
                                        r"capability 10.0\); this GPU has 9.0"):
        require_recipe("mxfp8", (9, 0))

