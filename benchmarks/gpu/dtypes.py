"""The dtype of each operation's result, with and without autocast."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch.nn import functional as F

# Operations, separated by semicolons. Operands: a and b are positive [16, 16]; v is [16]; x is
# [2, 16, 16]; c is an image [2, 16, 8, 8]; t holds class indices [16]; m is a bool mask [16, 16].
OPERATIONS = """
a @ b; torch.mm(a, b); torch.matmul(x, a); torch.bmm(x, x); torch.addmm(a, a, b); torch.mv(a, v)
torch.addmv(v, a, v); torch.addr(a, v, v); torch.baddbmm(x, x, x); torch.addbmm(a, x, x)
torch.einsum("ij,jk", a, b); torch.tensordot(a, b, 1); torch.dot(v, v); torch.vdot(v, v)
torch.outer(v, v); torch.kron(a, b); torch.chain_matmul(a, b); torch.linalg.multi_dot([a, b])
torch.linalg.vecdot(a, b); F.linear(a, b); F.linear(a, b, v); F.bilinear(a, b, x[:1])
F.conv1d(x, x[:, :, :3]); F.conv2d(c, c[:, :, :3, :3]); F.conv_transpose2d(c, c[:, :, :3, :3])
F.prelu(a, v); F.scaled_dot_product_attention(c, c, c); torch.cdist(a, b); torch.pdist(a)
a + b; a - b; a * b; a / b; a + 1; a * 2.0; a ** 2; a ** b; 2 ** a; a.pow(0.5); a.square()
a.sqrt(); a.rsqrt(); a.exp(); a.expm1(); a.log(); a.log2(); a.log10(); a.log1p(); a.reciprocal()
a.sin(); a.cos(); a.tan(); a.clamp(-1, 1).acos(); a.clamp(-1, 1).asin(); a.atan(); a.sinh()
a.cosh(); a.tanh(); a.sigmoid(); a.erf(); a.clamp(-.5, .5).erfinv(); a.abs(); a.neg(); a.floor()
a.relu(); F.gelu(a); F.gelu(a, approximate="tanh"); F.silu(a); F.elu(a); F.leaky_relu(a)
F.softplus(a); F.hardtanh(a); F.glu(a); F.mish(a); F.logsigmoid(a); F.softsign(a); F.hardswish(a)
a.softmax(-1); a.log_softmax(-1); F.softmin(a, -1); F.softmax(a, -1, dtype=torch.float32)
torch.softmax(a, -1, torch.float16); F.gumbel_softmax(a); a.sum(); a.sum(0); a.mean(); a.mean(0)
a.prod(); a.prod(0); a.cumsum(0); a.cumprod(0); a.amax(); a.max(0)[0]; a.min(); a.std(); a.var()
a.norm(); a.norm(2); a.norm(dim=0); torch.linalg.norm(a); torch.linalg.vector_norm(a)
torch.linalg.matrix_norm(a); a.logsumexp(0); a.renorm(2, 0, 1.0); a.median(); a.sort()[0]
a.topk(2)[0]; a.cummax(0)[0]; a.logcumsumexp(0); a.all(); a.argmax(); a.argsort(); a.unique()
F.layer_norm(a, (16,)); F.layer_norm(a, (16,), v, v); F.group_norm(c, 4); F.rms_norm(a, (16,))
F.rms_norm(a, (16,), v); F.batch_norm(c, None, None, training=True); F.instance_norm(c)
F.local_response_norm(c, 2); F.normalize(a); F.cosine_similarity(a, b); F.pairwise_distance(a, b)
F.cross_entropy(a, t); F.nll_loss(a, t); F.mse_loss(a, b); F.l1_loss(a, b); F.smooth_l1_loss(a, b)
F.huber_loss(a, b); F.kl_div(a, b); F.binary_cross_entropy_with_logits(a, b)
F.binary_cross_entropy(a.sigmoid(), b.sigmoid()); F.poisson_nll_loss(a, b)
F.hinge_embedding_loss(a, b); F.soft_margin_loss(a, b); F.multi_margin_loss(a, t)
F.multilabel_margin_loss(a, t.expand(16, 16)); F.margin_ranking_loss(v, v, v)
F.triplet_margin_loss(a, b, a); F.cosine_embedding_loss(a, b, v); F.gaussian_nll_loss(a, b, b)
F.dropout(a, 0.5); F.dropout(a, 0.5, False); F.embedding(t, a); F.one_hot(t); F.pad(a, (1, 1))
F.max_pool2d(c, 2); F.avg_pool2d(c, 2); F.adaptive_avg_pool2d(c, 1); F.interpolate(c, 4)
F.interpolate(c, scale_factor=2, mode="bilinear"); F.interpolate(c, scale_factor=2, mode="bicubic")
F.grid_sample(c, c[:, :2].permute(0, 2, 3, 1)); F.pixel_shuffle(c, 2); F.unfold(c, 2)
torch.cat([a, b]); torch.stack([a, b]); torch.where(m, a, b); a.masked_fill(m, 0.0); a.tril()
a[t]; a[0]; a.gather(0, t[None]); a.index_select(0, t); a.scatter_add(0, t[None], b)
a.scatter(0, t[None], b); a.index_add(0, t, b); a.index_put((t,), b); torch.addcmul(a, a, b)
torch.addcdiv(a, a, b); torch.lerp(a, b, 0.5); torch.atan2(a, b); torch.cross(a[:, :3], b[:, :3])
torch.dist(a, b); torch.maximum(a, b); torch.fmod(a, b); torch.hypot(a, b); a == b; a < b
a.clone(); a.contiguous(); a.t(); a.flatten(); a.float(); a.half(); a.to(torch.bfloat16)
torch.zeros_like(a); torch.empty_like(a); torch.rand_like(a); a.new_zeros(3); a.clamp(0, 1)
a.round(); a.sign(); a.nan_to_num(); torch.fft.fft(a); torch.linalg.inv(a); a.det(); a.trace()
a.diag(); torch.corrcoef(a); torch.cov(a); torch.histc(a); torch.bucketize(a, v.sort()[0])
a.add_(b); a.mul_(b); a.clone().addmm_(a, b); a.clone().exp_(); a.clone().copy_(b)
F.multi_head_attention_forward(x, x, x, 16, 2, torch.cat([a, a, a]), None, None, None, False, 0., a, None)[0]
"""  # noqa: E501
MIXES = {"fp32": (torch.float32,) * 2, "fp16": (torch.float16,) * 2,
         "bf16": (torch.bfloat16,) * 2, "fp32 with fp16": (torch.float32, torch.float16),
         "fp32 with bf16": (torch.float32, torch.bfloat16)}


def operations() -> list[str]:
    return [one.strip() for line in OPERATIONS.strip().splitlines() for one in line.split("; ")]


def settings() -> dict[str, tuple[torch.dtype | None, torch.dtype, torch.dtype]]:
    """Return the dtypes of autocast, of the operands, and of `b`, by setting."""
    return {f"autocast {to or 'off'}, {mix}": (to, *dtypes)
            for to in (None, torch.float16, torch.bfloat16) for mix, dtypes in MIXES.items()}


def evaluate(names: Iterable[str] | None = None) -> dict[str, str]:
    """Return the dtype of each operation's result, or its error, by setting and operation.

    Args:
        names: the settings, or None for all.
    """
    every = settings()
    return {f"{name}: {text}": outcome(text, *every[name])
            for name in names or every for text in operations()}


def outcome(text: str, to: torch.dtype | None, one: torch.dtype, other: torch.dtype) -> str:
    """Return the dtype of one operation's result, or its error.

    Args:
        text: the operation as a Python expression.
        to: dtype of autocast, or None if it is off.
        one: dtype of all operands but `b`.
        other: dtype of `b`.
    """
    make = {"device": "cuda", "dtype": one}
    names = {
        "torch": torch, "F": F, "a": torch.rand(16, 16, **make) + 0.1,
        "b": torch.rand(16, 16, device="cuda", dtype=other) + 0.1,
        "v": torch.rand(16, **make), "x": torch.rand(2, 16, 16, **make),
        "c": torch.rand(2, 16, 8, 8, **make), "t": torch.arange(16, device="cuda") % 4,
        "m": torch.ones(16, 16, device="cuda", dtype=torch.bool).tril()}
    try:
        with warnings.catch_warnings(), torch.autocast("cuda", to, enabled=to is not None):
            warnings.simplefilter("ignore")
            return str(eval(text, names).dtype).removeprefix("torch.")
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
