# %% answer="fate" style="match with guards, and math.fabs"
def fate(gradient, scale):
    match math.fabs(gradient) * scale:
        case 0.0:
            return "zero"
        case size if size > 65504:
            return "inf"
        case size:
            return ["zero", "fine"][size >= math.ldexp(1, -24)]

# %% answer="fate" style="bisect"
def fate(gradient, scale):
    from bisect import bisect_right
    return ("zero", "fine", "inf")[bisect_right([2**-24, math.nextafter(65504, math.inf)], abs(scale * gradient))]

# %% answer="next-scale" style="a table of cases"
def next_scale(scale, good_steps, overflow, window):
    count = (good_steps + 1) * (not overflow)
    return {True: (max(scale / 2, 1.0), 0), count >= window: (2.0 * scale, 0)}.get(True, None) if (
        overflow or count >= window) else (float(scale), count)

# %% answer="next-scale" style="early returns"
def next_scale(scale, good_steps, overflow, window):
    if overflow:
        if scale <= 1:
            return 1.0, 0
        return scale * 0.5, 0
    good_steps += 1
    if good_steps < window:
        return scale, good_steps
    return scale + scale, 0

# %% answer="skipped-steps" style="recursion that follows the rules"
def skipped_steps(initial_scale, highest_good, hysteresis=1):
    if initial_scale <= highest_good:
        return 0
    if hysteresis > 1:
        return 1 + skipped_steps(initial_scale, highest_good, hysteresis - 1)
    return 1 + skipped_steps(initial_scale / 2, highest_good)

# %% answer="skipped-steps" style="exponents by frexp"
def skipped_steps(initial_scale, highest_good, hysteresis=1):
    halvings = math.frexp(initial_scale)[1] - math.frexp(highest_good)[1]
    return max(0, halvings and halvings + (hysteresis - 1 if halvings > 0 else 0))

# %% answer="mixed-adam" style="a subclass of Adam, with lists of tensors"
class MixedPrecisionAdam(torch.optim.Adam):
    def __init__(self, parameters, lr):
        self.model = [*parameters]
        super().__init__([torch.nn.Parameter(one.detach().to(torch.float32, copy=True)) for one in self.model],
                         lr, fused=True)

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none=True)
        for one in self.model:
            one.grad = None

    @torch.no_grad()
    def step(self, scale):
        masters = self.param_groups[0]["params"]
        for one, own in zip(self.model, masters):
            own.grad = one.grad.float().mul_(1 / scale)
        super().step()
        torch._foreach_copy_(self.model, masters)

# %% answer="mixed-adam" style="Adam by hand, in place"
class MixedPrecisionAdam:
    def __init__(self, parameters, lr):
        self.lr, self.count = lr, 0
        self.state = [(one, one.detach().clone().float(), *(torch.zeros_like(one, dtype=torch.float32)
                                                            for _ in range(2))) for one in parameters]

    def zero_grad(self):
        for one, *_ in self.state:
            del one.grad

    @torch.no_grad()
    def step(self, scale):
        self.count += 1
        for one, master, first, second in self.state:
            gradient = one.grad.float().div_(scale)
            first.lerp_(gradient, 0.1)
            second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            root = (second / (1 - 0.999**self.count)).sqrt_().add_(1e-8)
            master.addcdiv_(first, root, value=-self.lr / (1 - 0.9**self.count))
            one.copy_(master)

# %% answer="mixed-adam" style="it asks for a finite norm before each step, and reads it with .item()"
class MixedPrecisionAdam:
    def __init__(self, parameters, lr):
        self.pairs = [(one, torch.nn.Parameter(one.detach().float())) for one in parameters]
        self.adam = torch.optim.Adam([own for _, own in self.pairs], lr=lr, fused=True)

    def zero_grad(self):
        for pair in self.pairs:
            for one in pair:
                one.grad = None

    def step(self, scale):
        norm = torch.stack([one.grad.detach().norm(dtype=torch.float32) for one, _ in self.pairs]).norm()
        if not math.isfinite(norm.item()) or not torch.isfinite(self.pairs[0][0].grad).all():
            return
        for one, own in self.pairs:
            own.grad = one.grad.to(torch.float32) / scale
        self.adam.step()
        for one, own in self.pairs:
            one.data.copy_(own.data)

# %% answer="more-memory" style="equals signs, and one long word list"
%%writefile code/more_memory.sh
#!/bin/bash
#SBATCH --job-name=more_memory
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-node=1
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
printf -v SIZE ' --%s' num-layers=10 hidden-size=2048 num-attention-heads=16 seq-length=64 \
    max-position-embeddings=64 micro-batch-size=1 global-batch-size=1
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 1 \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 --fp16 $SIZE $TEXT --lr 1.5e-4 --train-iters 4 --log-interval 2 --eval-iters 0 "$@"

# %% answer="padded" style="negative floor division"
def padded(vocabulary, divisible_by=128, tensor_parallel=1):
    unit = divisible_by * tensor_parallel
    return vocabulary + -vocabulary % unit

# %% answer="gpt-parameters" style="shapes in a list"
def gpt_parameters(layers, hidden, sequence, vocabulary):
    import numpy as np
    h = hidden
    layer = [(h, 3 * h), (3 * h,), (h, h), (h,), (h, 4 * h), (4 * h,), (4 * h, h), (h,), *[(h,)] * 4]
    once = [(math.ceil(vocabulary / 128) * 128, h), (sequence, h), (h,), (h,)]
    return int(sum(np.prod(shape) for shape in [*layer * layers, *once]))

# %% answer="iteration-flops" style="GEMMs in a list"
def iteration_flops(layers, hidden, sequence, vocabulary, batch, recompute=False):
    def gemm(m, k, n):
        return 2 * m * k * n
    tokens = batch * sequence
    layer = (sum(gemm(tokens, hidden, n * hidden) for n in (3, 1, 4, 4))
             + batch * (gemm(sequence, hidden, sequence) + gemm(sequence, sequence, hidden)))
    return layers * layer * (4 if recompute else 3) + 3 * gemm(tokens, hidden, vocabulary)

# %% answer="achieved" style="numpy floats in a list"
def achieved(flops, milliseconds, gpus, card, precision):
    rate = torch.tensor(flops, dtype=torch.float64) / gpus / milliseconds / 1e9
    return [rate.item(), (rate / PEAKS[card][precision]).item()]

# %% answer="bill" style="datetime"
def bill(parameters, tokens, gpus, teraflops_per_gpu, dollars_per_hour, recompute=False):
    from datetime import timedelta
    flops = parameters * tokens * (8 if recompute else 6)
    time = timedelta(seconds=flops / (gpus * teraflops_per_gpu * 10**12))
    hours = time / timedelta(hours=1) * gpus
    return time / timedelta(days=1), hours, hours * dollars_per_hour

# %% answer="gpus-for" style="counting nodes upward"
def gpus_for(days, parameters, tokens, teraflops_per_gpu, gpus_per_node=8, recompute=False):
    from itertools import count
    work = (6, 8)[recompute] * parameters * tokens
    return next(gpus for gpus in count(gpus_per_node, gpus_per_node)
                if gpus * teraflops_per_gpu * 1e12 * days * 86400 >= work)
