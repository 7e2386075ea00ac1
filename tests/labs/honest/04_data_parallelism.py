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

# %% answer="no-sync" style="an exit stack"
class HookedDDP(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.synchronizes = True
        for parameter in module.parameters():
            dist.broadcast(parameter.detach(), src=0)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.average)

    def forward(self, *inputs, **keywords):
        return self.module(*inputs, **keywords)

    def average(self, parameter):
        if self.synchronizes:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def finish(self):
        pass

    @contextlib.contextmanager
    def no_sync(self):
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "synchronizes", self.synchronizes)
            self.synchronizes = False
            yield

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

# %% answer="script" style="functions, a case of the exit code, and a test of the file"
%%writefile code/my_ddp.sh
#!/bin/bash
#SBATCH --job-name=my_ddp
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
#SBATCH -N 2
#SBATCH --signal=SIGTERM@90
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail
export OMP_NUM_THREADS=1
saved=megatron/checkpoints/my_ddp

train() {
    local first
    read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes=2 --nproc-per-node=2 \
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
#SBATCH --nodes=2 --requeue --open-mode=append --signal=15@120
set -euo pipefail

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
