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
    import torch
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
