# %% answer="count-transformer" style="shapes in lists, and a meter for each part"
def count_transformer(model, batch=1, recompute=False):
    from math import prod
    h, f, n = model["hidden"], model["ffn"], model["layers"]
    kv = h // model["heads"] * model["groups"]
    bias = model["biases"]
    mlp = [(h, f)] * (1 + model["gated"]) + [(f, h)]
    attention = [(h, h), (h, kv), (h, kv), (h, h)]
    router = [(h, model["experts"])] if model["experts"] > 1 else []

    def size(shapes, with_bias):
        return sum(prod(shape) + shape[1] * (with_bias and bias) for shape in shapes)

    norms = (2 * n + 1) * h * (2 if bias else 1)
    table = model["vocabulary"] * h
    outside = norms + table + (0 if model["tied"] else table) + (model["sequence"] * h if model["learned"] else 0)
    inside = n * (size(attention, True) + size(router, False))
    one = n * size(mlp, True)
    tokens = batch * model["sequence"]
    weights = n * (size(attention + router, False) + model["chosen"] * size(mlp, False))
    scores = 2 * n * model["sequence"] * h
    forward = 2 * tokens * (weights + scores)
    return {"flops": 3 * (forward + 2 * tokens * table) + (forward if recompute else 0),
            "active": int(outside + inside + model["chosen"] * one),
            "parameters": int(outside + inside + model["experts"] * one)}

# %% answer="read-utilization" style="comprehensions, and step FLOPs by sequence"
def read_utilization(log):
    settings, lines = read_log(log)
    pairs = list(zip(lines[:-1], lines[1:]))
    time = sum(b["ms"] * (b["iteration"] - a["iteration"]) for a, b in pairs) / 1e3
    each = {again: count_transformer(settings["model"], 1, again)["flops"] for again in (False, True)}
    peak = settings["gpus"] * settings["peak"] * 10**12
    ran = lines[-1]["samples"] - lines[0]["samples"]
    lost = sum(b["skipped"] * b["batch"] for _, b in pairs)
    return dict(hfu=ran * each[settings["recompute"]] / time / peak, mfu=ran * each[False] / time / peak,
                overall=(ran - lost) * each[False] / (lines[-1]["time"] - lines[0]["time"]) / peak)

# %% answer="time-to-finish" style="a generator of events"
def time_to_finish(run):
    def attempt(first):
        """Yield the seconds since the attempt began, whether a checkpoint is complete, and the step."""
        passed = 0.0
        for step in range(first + 1, run["steps"] + 1):
            passed += run["step"]
            if step % run["evaluate_every"] == 0:
                passed += run["evaluate"]
            kept = step % run["save_every"] == 0
            if kept:
                passed += run["save"]
            yield passed, kept, step

    begin, saved = 0.0, 0
    for failure in [*run["failures"], float("inf")]:
        if failure < begin:  # during a restart
            begin = failure + run["restart"]
            continue
        for passed, kept, step in attempt(saved):
            if begin + passed > failure:
                begin = failure + run["restart"]
                break
            saved = step if kept else saved
        else:
            return begin + passed


def best_interval(run, histories):
    best, least = None, float("inf")
    for every in range(run["steps"], 0, -1):  # of equally good ones, the shortest
        times = [time_to_finish(dict(run, save_every=every, failures=list(history))) for history in histories]
        if sum(times) / len(times) <= least:
            best, least = every, sum(times) / len(times)
    return best

# %% answer="audit" style="one test after the other"
def audit(plan):
    def off(name, right):
        return [name] if not 0.9 <= plan[name] / right <= 1.1 else []

    made = count_transformer(plan["model"], batch=plan["batch"], recompute=plan["recompute"])
    second = plan["gpus"] * plan["teraflops"] * 1e12
    days = (6 + 2 * plan["recompute"]) * plan["tokens"] * plan["parameters"] / second / (24 * 60 * 60)
    return (off("parameters", made["parameters"]) + off("step_flops", made["flops"])
            + off("teraflops", plan["step_flops"] / (plan["gpus"] * plan["step_seconds"]) * 1e-12)
            + off("days", days) + off("gpu_hours", plan["days"] * 24 * plan["gpus"])
            + off("dollars", plan["gpu_hours"] * plan["dollars_per_hour"]))

# %% answer="choose-option" style="all corners of the errors"
def choose_option(options, tokens, days, budget, error):
    from itertools import product

    def winner(factors):
        bills = {}
        for factor, option in zip(factors, options):
            hours = factor * tokens / option["tokens_per_second"] / 3600
            bill = hours * option["gpus"] * option["dollars_per_hour"]
            if option["fits"] and hours / 24 <= days and bill <= budget:
                bills[option["name"]] = bill
        return min(bills, key=bills.get) if bills else None

    winners = [winner(factors) for factors in product((1 - error, 1 + error), repeat=len(options))]
    return {"best": winner([1] * len(options)),
            "contenders": [option["name"] for option in options if option["name"] in winners]}
