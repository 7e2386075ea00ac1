"""Every private name of torch that this package needs; a torch that lacks one is rejected."""

from __future__ import annotations

import importlib

import torch

from virtualgpu.core.errors import VirtualGpuError

NAMES = (
    "torch.Tensor._make_wrapper_subclass",
    "torch.UntypedStorage._cdata",
    "torch._C.DisableTorchFunction",
    "torch._C.DispatchKey.AutocastCUDA",
    "torch._C.DispatchKeySet",
    "torch._C.TensorBase.data",
    "torch._C.TensorBase.device",
    "torch._C.TensorBase.grad",
    "torch._C.TensorBase.is_cpu",
    "torch._C.TensorBase.is_cuda",
    "torch._C.TensorBase.is_meta",
    "torch._C._DisableTorchDispatch",
    "torch._C._ExcludeDispatchKeyGuard",
    "torch._C._TorchDispatchModeKey.FAKE",
    "torch._C._accelerator_exchangeDevice",
    "torch._C._accelerator_maybeExchangeDevice",
    "torch._C._autograd._get_sequence_nr",
    "torch._C._autograd._top_saved_tensors_default_hooks",
    "torch._C._current_autograd_node",
    "torch._C._current_graph_task_id",
    "torch._C._dispatch_has_kernel_for_dispatch_key",
    "torch._C._dispatch_tls_set_dispatch_key_excluded",
    "torch._C._dispatch_tls_set_dispatch_key_included",
    "torch._C._distributed_c10d.Backend.Options",
    "torch._C._distributed_c10d.FakeProcessGroup._create_internal",
    "torch._C._functions.AccumulateGrad._input_metadata",
    "torch._C._get_accelerator",
    "torch._C._get_cublas_allow_tf32",
    "torch._C._get_cudnn_allow_tf32",
    "torch._C._get_dispatch_mode",
    "torch._C._get_sdp_priority_order",
    "torch._C._group_tensors_by_device_and_dtype",
    "torch._C._has_storage",
    "torch._C._is_fwd_grad_enabled",
    "torch._C._nn._parse_to",
    "torch._C._set_only_lift_cpu_tensors",
    "torch._foreach_copy_",
    "torch._foreach_mul_",
    "torch._foreach_norm",
    "torch._higher_order_ops.flex_attention.__call__",
    "torch._ops.HigherOrderOperator",
    "torch._ops.OpOverload",
    "torch._ops.OpOverloadPacket",
    "torch._scaled_mm",
    "torch._subclasses.fake_tensor.FakeTensorMode.__torch_dispatch__",
    "torch._subclasses.fake_tensor.init_gpu_context",
    "torch._tensor_str._str",
    "torch.autograd.Variable._execution_engine.queue_callback",
    "torch.autograd._get_sequence_nr",
    "torch.autograd.graph.Node._sequence_nr",
    "torch.cuda._DeviceGuard",
    "torch.cuda._exchange_device",
    "torch.cuda._is_compiled",
    "torch.cuda._is_in_bad_fork",
    "torch.cuda._lazy_init",
    "torch.cuda._maybe_exchange_device",
    "torch.distributed.Backend._BackendPlugin",
    "torch.distributed.Backend._plugins",
    "torch.distributed._functional_collectives.AsyncCollectiveTensor",
    "torch.distributed.checkpoint.state_dict_saver._stateful_to_state_dict",
    "torch.distributed.distributed_c10d._canonicalize_group_rank",
    "torch.distributed.distributed_c10d._get_default_group",
    "torch.distributed.distributed_c10d._new_process_group_helper",
    "torch.distributed.distributed_c10d._resolve_process_group",
    "torch.distributed.distributed_c10d._set_pg_timeout",
    "torch.distributed.distributed_c10d._world",
    "torch.distributed.fsdp._init_utils",
    "torch.nn.Module._apply",
    "torch.nn.attention.flex_attention._WARNINGS_SHOWN",
    "torch.nn.init._no_grad_trunc_normal_",
    "torch.ops.aten.add.Tensor._overloadpacket",
    "torch.ops.aten.add.Tensor._schema",
    "torch.profiler.profiler._KinetoProfile",
    "torch.serialization.default_restore_location",
    "torch.utils._device.DeviceContext.__init__",
    "torch.utils._device.DeviceContext.__torch_function__",
    "torch.utils._device._device_constructors",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._python_dispatch._disable_current_modes",
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
    "torch.utils._pytree.keystr",
    "torch.utils._pytree.tree_flatten_with_path",
    "torch.utils._pytree.tree_leaves",
    "torch.utils._pytree.tree_map",
)

# Attributes of modules; no class has them.
ATTRIBUTES = ("_buffers", "_parameters")


class MissingName(VirtualGpuError):
    """Raised if this version of torch lacks a private name that virtual GPUs need."""


def check(names: tuple[str, ...] = NAMES) -> None:
    """Raise MissingName unless this torch has them all."""
    missing = [name for name in names if not exists(name)]
    if missing:
        raise MissingName(f"torch {torch.__version__} lacks {', '.join(missing)}, which virtual "
                          "GPUs need; torch 2.11 to 2.13 have them")


def exists(name: str) -> bool:
    """Return whether a dotted name exists, importing modules as needed."""
    parts = name.split(".")
    value: object = torch
    for count, part in enumerate(parts[1:], start=2):
        if not hasattr(value, part):
            try:
                importlib.import_module(".".join(parts[:count]))
            except ImportError:
                return False
        value = getattr(value, part, None)
        if value is None:
            return False
    return True
