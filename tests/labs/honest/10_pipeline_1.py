# %% answer="one-by-one" style="string multiplication"
def one_by_one(stages, batches):
    return [" ".join(f"F{n} B{n}" for n in range(batches))] * stages

# %% answer="one-by-one" style="a tuple, and two spaces"
def one_by_one(stages, batches):
    words = []
    for batch in range(batches):
        words += ["F" + str(batch), "B" + str(batch)]
    return tuple("  ".join(words) for _ in range(stages))

# %% answer="naive-costs" style="numpy, as an array of two numbers"
def naive_costs(stages, hours):
    import numpy as np
    return tuple(np.array([1, stages * hours]) / (stages, 1))

# %% answer="train-step" style="torch.autograd.grad and no backward"
def train_step(first, second, x, y, loss_of, send):
    import torch

    activations = first(x)
    there = send(activations).requires_grad_()
    loss = loss_of(second(there), y)
    *of_second, of_input = torch.autograd.grad(loss, [*second.parameters(), there])
    back = send(of_input)
    of_first = torch.autograd.grad(activations, [*first.parameters()], grad_outputs=back)
    for parameter, gradient in zip([*first.parameters(), *second.parameters()], [*of_first, *of_second]):
        parameter.grad = gradient
    return activations, of_input

# %% answer="accumulate" style="one backward pass of a weighted sum"
def accumulate(model, loss_of, micro_batches):
    samples = sum(len(x) for x, _ in micro_batches)
    sum(loss_of(model(x), y) * len(x) for x, y in micro_batches).div(samples).backward()

# %% answer="accumulate" style="gradients added by hand"
def accumulate(model, loss_of, micro_batches):
    import torch

    parameters, total = list(model.parameters()), 0
    sums = [torch.zeros_like(one) for one in parameters]
    for x, y in micro_batches:
        total += x.shape[0]
        for held, new in zip(sums, torch.autograd.grad(loss_of(model(x), y), parameters)):
            held += new * x.shape[0]
    for one, held in zip(parameters, sums):
        one.grad = held / total

# %% answer="my-gpipe" style="backward passes in reverse order"
def my_gpipe(stages, micro_batches):
    return [" ".join([*(f"F{m}" for m in range(micro_batches)),
                      *(f"B{m}" for m in reversed(range(micro_batches)))]) for _ in range(stages)]

# %% answer="my-gpipe" style="a list of words per stage, from a product"
def my_gpipe(stages, micro_batches):
    from itertools import product
    words = [f"{kind}{number}" for kind, number in product("FB", range(micro_batches))]
    return [list(words) for _ in range(stages)]

# %% answer="my-gpipe" style="map, and one more space"
def my_gpipe(stages, micro_batches):
    forward, backward = (" ".join(map((kind + "{}").format, range(micro_batches))) for kind in "FB")
    return [f"{forward}  {backward} "] * stages

# %% answer="bubble" style="a fraction"
def bubble(p, m):
    from fractions import Fraction
    return float(1 - Fraction(m, m + p - 1))

# %% answer="bubble" style="idle slots of a grid"
def bubble(p, m):
    width = m + p - 1
    grid = [[stage <= slot < stage + m for slot in range(width)] for stage in range(p)]
    return 1 - sum(map(sum, grid)) / (p * width)

# %% answer="micro-batches-for" style="counting"
def micro_batches_for(p, percent):
    m = 1
    while 100 * (p - 1) > percent * (m + p - 1):
        m += 1
    return m

# %% answer="step-time" style="a simulation of each phase"
def step_time(forward, backward, m):
    def phase(times):
        done = [0] * len(times)
        for _ in range(m):
            arrived = 0
            for stage, time in enumerate(times):
                arrived = done[stage] = max(arrived, done[stage]) + time
        return done[-1]
    return phase(forward) + phase(backward[::-1])

# %% answer="kept-bytes" style="a simulation"
def kept_bytes(mode, m, everything, input):
    held = [input + everything * (mode == "never" or (mode == "except_last" and n == m - 1)) for n in range(m)]
    peak = sum(held)
    while held:
        held[-1] = everything + input
        peak = max(peak, sum(held))
        held.pop()
    return peak

# %% answer="extra-work" style="a dictionary of functions"
def extra_work(mode, m):
    again = dict(never=lambda: 0, always=lambda: m, except_last=lambda: m - 1)[mode]()
    return (3 * m + again) / (3 * m)

# %% answer="chunk-sizes" style="a generator with yield"
def chunk_sizes(samples, chunks):
    def sizes(left, size):
        if left > 0:
            yield min(size, left)
            yield from sizes(left - size, size)
    return list(sizes(samples, (samples + chunks - 1) // chunks))

# %% answer="chunk-sizes" style="slices of a range"
def chunk_sizes(samples, chunks):
    size = -(-samples // chunks)
    return [len(range(samples)[begin:begin + size]) for begin in range(0, samples, size)]
