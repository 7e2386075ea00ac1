"""Host time of eager PyTorch in inference: what Python and the dispatcher take per operation.

A training step has large kernels, so a stack's cost per launch (stacks.py) describes its host well
enough. A step of decoding has kernels of a few microseconds, and the host then needs longer for
each of them than the GPU: for Python, for torch's dispatcher, for allocating the result, and for
the launch. Views and calls of modules launch nothing, but cost the host as well.

CALLS has the host's time per eager call as measured on the host of an H100 with torch 2.11
(benchmarks/results/gpu_h100.md, "The host's time per eager call"); operations that the record lacks
have the time of a similar one. VIEW and MODULE_CALL were measured with torch 2.13 on a busy core of
an AMD EPYC, because the record has neither (`python -m benchmarks.inference --host`). Nothing was
fitted to inference on Hopper GPUs; benchmarks/results/inference.md has the comparisons.
"""

from __future__ import annotations

from virtualgpu.core.gpu import VirtualGpu

US = 1e-6
POINTWISE = 7.5 * US  # x + w
COPY = 13.9 * US  # clone
REDUCTION = 14.7 * US  # sum
GEMM, GEMM_WITH_BIAS = 19.7 * US, 36.4 * US  # x @ w; F.linear with a bias
ATTENTION = 22.3 * US
CALLS: dict[str, float] = {
    "aten.mm": GEMM, "aten.bmm": GEMM, "aten.addmm": GEMM_WITH_BIAS,
    "aten.baddbmm": GEMM_WITH_BIAS, "aten.convolution": GEMM_WITH_BIAS, "aten._scaled_mm": GEMM,
    "aten._scaled_dot_product_flash_attention": ATTENTION,
    "aten._scaled_dot_product_efficient_attention": ATTENTION,
    "aten._scaled_dot_product_cudnn_attention": ATTENTION,
    "aten._softmax": 12.3 * US, "aten._log_softmax": 12.3 * US, "aten.gelu": 11.7 * US,
    "aten.silu": 11.7 * US, "aten.native_layer_norm": 20.8 * US,
    "aten._fused_rms_norm": 20.8 * US,
    **dict.fromkeys(("aten.sum", "aten.mean", "aten.amax", "aten.amin", "aten.max", "aten.min",
                     "aten.argmax", "aten.any", "aten.all", "aten.cumsum", "aten.topk",
                     "aten.sort", "aten.multinomial"), REDUCTION),
    **dict.fromkeys(("aten.clone", "aten._to_copy", "aten.copy_", "aten.cat", "aten.stack",
                     "aten.index", "aten.index_put_", "aten._index_put_impl_", "aten.index_copy_",
                     "aten.index_select", "aten.embedding", "aten.gather", "aten.scatter",
                     "aten.repeat", "aten.slice_scatter"), COPY),
}
VIEW = 2 * US  # view, transpose, x[0], x[..., 0], x[:, :n], unsqueeze, expand: 1.2 to 3.5
MODULE_CALL = 2 * US  # a module that reads a parameter and a number, and returns its input: 2 to 4
GRAPH_LAUNCH = 10 * US  # assumed: one launch of a CUDA graph
# How many times slower a host is than the one of CALLS, by the GPU's architecture. The A100's is
# fitted to one row, gpt-fast's eager 25.5 tokens/s with PyTorch of 2023
# (pytorch.org/blog/accelerating-generative-ai-2). Assumed: all others are as fast as the H100's.
SLOWER = {"ampere": 1.75}


class EagerHost:
    """Charges a virtual GPU's host for eager operations while the program runs inference.

    Attributes:
        compiled: depth of torch.compile regions, whose host only launches kernels.
        graphed: depth of regions that replay a CUDA graph, whose host launches one graph.
    """

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu = gpu
        self.factor = SLOWER.get(gpu.card.architecture, 1.0)
        self.compiled = self.graphed = 0

    def operation(self, name: str, launches: float) -> float:
        """Return the host's time for an operation, in seconds.

        Args:
            launches: the time of the operation's launches alone.
        """
        if not self.gpu.runs_inference():
            return launches
        if self.graphed:
            return 0.0
        if self.compiled:
            return launches
        return max(launches, self.factor * CALLS.get(name, POINTWISE))

    def view(self) -> None:
        """Charge the host for an operation that returns a view."""
        self._charge(VIEW)

    def module_call(self) -> None:
        """Charge the host for a call of a module."""
        self._charge(MODULE_CALL)

    def _charge(self, seconds: float) -> None:
        if not (self.compiled or self.graphed) and self.gpu.runs_inference():
            self.gpu.clock.work(self.factor * seconds)
