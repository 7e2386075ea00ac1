# %% answer="shift" style="a batch of point-to-point operations"
def shift(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = torch.empty_like(tensor)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, found, (rank - 1) % ranks),
                                        dist.P2POp(dist.isend, tensor, (rank + 1) % ranks)]):
        work.wait()
    return found

# %% answer="shift" style="rank 0 receives first, and all others send first"
def shift(tensor):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = tensor.clone()
    acts = [lambda: dist.send(tensor.contiguous(), (rank + 1) % ranks),
            lambda: dist.recv(found, ranks - 1 if rank == 0 else rank - 1)]
    for act in acts if rank else acts[::-1]:
        act()
    return found

# %% answer="collectives" style="one loop for both phases"
%%writefile mytrainer/collectives.py
import itertools

import torch
import torch.distributed as dist


def all_reduce(tensor, group=None):
    me, n = dist.get_rank(group), dist.get_world_size(group)
    right, left = (one % n if group is None else dist.get_global_rank(group, one % n) for one in (me + 1, me - 1))
    pieces = torch.tensor_split(tensor.reshape(-1), n)
    for gathers, step in itertools.product((0, 1), range(n - 1)):
        out = (me - step + gathers) % n
        into = pieces[out - 1]
        arrived = torch.zeros_like(into)
        works = [dist.isend(pieces[out], right, group), dist.irecv(arrived, left, group)]
        for work in works:
            work.wait()
        into.mul_(1 - gathers).add_(arrived)
    return tensor

# %% answer="naive" style="the state dict, and asynchronous all-reduces"
class NaiveDDP(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        with torch.no_grad():
            for one in module.state_dict().values():
                dist.broadcast(one, 0)

    def forward(self, *inputs, **keywords):
        return self.module(*inputs, **keywords)

    def finish(self):
        grads = [one.grad for one in self.module.parameters() if one.grad is not None]
        for work in [dist.all_reduce(one.div_(dist.get_world_size()), async_op=True) for one in grads]:
            work.wait()

    def no_sync(self):
        return contextlib.nullcontext()

# %% answer="async" style="an exit stack, and division before the all-reduce"
class AsyncDDP(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.local, self.works = module, 0, []
        for one in module.parameters():
            dist.broadcast(one.data, 0)
        for one in filter(lambda one: one.requires_grad, module.parameters()):
            one.register_post_accumulate_grad_hook(self.send)

    def send(self, one):
        if not self.local:
            self.works += [dist.all_reduce(one.grad.div_(dist.get_world_size()), async_op=True)]

    def forward(self, *inputs, **keywords):
        return self.module(*inputs, **keywords)

    @contextlib.contextmanager
    def no_sync(self):
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "local", self.local)
            self.local += 1
            yield

    def finish(self):
        while self.works:
            self.works.pop(0).wait()

# %% answer="buckets" style="a queue of gradients, and views of the flat tensor"
def average_in_buckets(parameters, bucket_mb):
    from collections import deque

    grads = deque(one.grad for one in parameters if one.grad is not None)
    while grads:
        bucket = [grads.popleft()]
        room = bucket_mb * 1024**2 - bucket[0].nbytes
        while grads and grads[0].nbytes <= room:
            room -= grads[0].nbytes
            bucket.append(grads.popleft())
        flat = torch.cat([one.reshape(-1) for one in bucket])
        dist.all_reduce(flat.mul_(1 / dist.get_world_size()))
        for one, part in zip(bucket, flat.split([one.numel() for one in bucket])):
            one.copy_(part.view_as(one))

# %% answer="launch" style="contiguous shares, and explicit ranks"
%%writefile mytrainer/launch.py
import os

import torch
from torch import distributed


def connect():
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if gpus else "gloo", rank=int(os.environ["RANK"]),
                                   world_size=int(os.environ["WORLD_SIZE"]))
    return torch.device("cuda", torch.cuda.current_device()) if gpus else torch.device("cpu")


def own_samples(consumed, batch, rank, ranks):
    size = batch // ranks
    return range(consumed + rank * size, consumed + (rank + 1) * size)

# %% answer="loop" style="the last micro-batch apart, and gradients that are zeroed"
%%writefile mytrainer/train.py
import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_


def train(model, optimizer, batches, learning_rate, log, args):
    for step in range(args.train_iters):
        done = step * args.global_batch_size
        optimizer.param_groups[0].update(lr=learning_rate(done))
        for group in optimizer.param_groups[1:]:
            group.update(lr=learning_rate(done))
        optimizer.zero_grad(set_to_none=False)
        parts = batches(done)
        loss = torch.zeros(())
        with model.no_sync():
            for part in parts[:-1]:
                one = model(part)
                (one / len(parts)).backward()
                loss = loss + one.detach()
        one = model(parts[-1])
        (one / len(parts)).backward()
        loss = (loss + one.detach()) / len(parts) / dist.get_world_size()
        model.finish()
        norm = clip_grad_norm_(list(model.parameters()), args.clip_grad if args.clip_grad > 0 else float("inf"))
        optimizer.step()
        dist.all_reduce(loss)
        log(step + 1, loss, norm)

# %% answer="bucket-size" style="the calculus"
def best_bucket(gradients, backward, call, bandwidth):
    def seconds(size):
        exposed = backward + call + size / bandwidth
        return max(exposed, size * backward / gradients + gradients * call / size + gradients / bandwidth)

    network = gradients * (call / backward) ** 0.5
    # Where both terms are equal: a quadratic equation for the size.
    a, b, c = backward / gradients - 1 / bandwidth, gradients / bandwidth - backward - call, gradients * call
    sizes = [min(network, gradients), gradients]
    if a and b * b - 4 * a * c >= 0:
        sizes += [(-b + sign * (b * b - 4 * a * c) ** 0.5) / (2 * a) for sign in (1, -1)]
    return min((size for size in sizes if 0 < size <= gradients), key=seconds)

# %% answer="script" style="functions, a case of the exit code, and a test of the file"
%%writefile code/my_ddp.sh
#!/bin/bash
#SBATCH --job-name=my_ddp
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
#SBATCH -N 2
#SBATCH --signal=SIGTERM@250
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail
export OMP_NUM_THREADS=1
saved=megatron/checkpoints/my_ddp

train() {
    local first
    read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes=2 --nproc-per-node=2 --shutdown_timeout=200 \
        --rdzv-backend=c10d --rdzv-endpoint="$first:$((SLURM_JOB_ID % 9000 + 21000))" \
        --rdzv-id="my_ddp.$SLURM_JOB_ID" "$LAB_HOME/code/train_ddp.py" --checkpoint="$saved" "$@"
}

cd "$LAB_HOME" || exit 3
rm -f -- "$saved/stopped"
train "$@"
status=$?
case $status in
    0) exit 0 ;;
    *) [[ -f $saved/stopped ]] || exit $status ;;
esac
scontrol requeue "$SLURM_JOB_ID"

# %% answer="script" style="a trap at the end, and find instead of rm"
%%writefile code/my_ddp.sh
#!/bin/bash
#SBATCH --job-name=my_ddp
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
#SBATCH --nodes=2 --requeue --open-mode=append --signal=15@180
set -euo pipefail

export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=120
finish() {
    status=$?
    trap - EXIT
    if (( status )) && test -e "$LAB_HOME/megatron/checkpoints/my_ddp/stopped"; then
        scontrol requeue $SLURM_JOB_ID && exit
    fi
    exit "$status"
}

mkdir -p "$LAB_HOME/megatron/checkpoints/my_ddp"
find "$LAB_HOME/megatron/checkpoints/my_ddp" -maxdepth 1 -name stopped -delete
trap finish EXIT
hosts=($(scontrol show hostnames))
srun -c2 bash -c 'exec torchrun "$@"' launcher --nnodes "$SLURM_NNODES" --nproc_per_node 2 --rdzv_backend c10d \
    --rdzv_endpoint "${hosts[0]}:$((25000 + SLURM_JOB_ID % 5000))" --rdzv_id "$SLURM_JOB_ID" \
    "$LAB_HOME/code/train_ddp.py" --checkpoint megatron/checkpoints/my_ddp "$@"
