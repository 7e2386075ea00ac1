"""The number of CPUs that taskset and numactl leave to the launcher of a job's ranks."""

import re

import pytest

from .test_script import SHEBANG, home, job, torchrun  # noqa: F401

pytestmark = pytest.mark.slow

ONE_NODE = SHEBANG + "#SBATCH --nodes=1\n#SBATCH --cpus-per-task=4\n"
RUN = torchrun("--standalone")


@pytest.mark.parametrize(("launch", "bound"), [
    ("srun ", None), ("srun -c4 ", None), ("srun -c 4 taskset -c 2 ", 1),
    ("srun -c 4 taskset --cpu-list 0-1,6 ", 3), ("srun -c 4 taskset 0x6 ", 2),
    ("taskset -c 0-6:2 ", 4), ("srun -c 4 numactl -l -C 1 ", 1),
    ("srun -c 4 taskset 0x3 taskset 0xff ", 2),
    ("srun -c 4 numactl --membind=0 --physcpubind=+0,2 ", 2), ("srun -c 4 numactl -N 0 ", None),
    ("taskset --pid --cpu-list 0 $$; srun -c 4 ", None),
    ("srun -c 4 --cpu-bind=map_cpu:0,1 ", 1), ("srun -c 4 --cpu-bind verbose,mask_cpu:0x3 ", 2),
    ("srun -c 4 --cpu-bind=cores ", None), ("srun -c 4 --cpu-bind=none ", None),
    ("srun --cpu-bind=mask_cpu:0xf taskset -c 1 ", 1),
    # slurmd starts the tasks of srun, so they do not inherit the script's CPUs.
    ("taskset -c 0 srun -c 4 ", None), ("export SLURM_CPU_BIND=map_cpu:0; srun -c 4 ", 1),
    ("export SLURM_CPU_BIND=map_cpu:0; srun -c 4 --cpu-bind=none ", None),
    ("srun -c 4 numactl -C0-2 ", 3), ("srun -c 4 numactl -C all ", None),
    ("srun -c 4 numactl -N0 -C 1 ", 1), ("export SLURM_CPU_BIND_LIST=x; taskset -c 0 ", 1),
    ("export SLURM_CPU_BIND_LIST=x; ", None),
    ("taskset -cp 0 $$; ", 1), ("taskset -p 0x3 $$; taskset -p $$; ", 2),
    ("taskset -cp 0 $$; taskset --pid --cpu-list 0-2 $$; ", 3),
    ("(taskset -cp 0 $BASHPID; true); ", None), ("taskset -cp 0 $$; taskset -cp 0-1 1; ", 1),
    ("taskset -cp 0 $$; srun -c 4 bash -c 'taskset -cp 0-1 $$; \"$@\"' bash ", 2),
    ("numactl --hardware; numactl -s; taskset --version && ", None),
    ("srun -c 4 bash -c 'exec taskset -c $SLURM_LOCALID \"$@\"' bash ", 1)])
def test_the_ranks_have_the_cpus_that_their_launcher_may_use(job, launch, bound):  # noqa: F811
    result = job(ONE_NODE + launch + RUN)
    assert (result.run.bound, result.ranks_per_node, result.problems) == (bound, 2, ())


@pytest.mark.parametrize("binder", ["taskset", "taskset -c", "taskset -c x", "taskset zz",
                                    "numactl -C", "numactl -C 1-x", "taskset -c 5-3",
                                    "taskset -c 100000", "taskset 0x0", "taskset -c 0-1:0",
                                    "taskset -c +0", "taskset -cp 0 x"])
def test_bad_arguments_start_nothing(job, binder):  # noqa: F811
    from labkit.check.checks import Failed

    name, last = binder.split()[0], binder.split()[-1]
    says = f"{name}: it needs more arguments"
    if last[-1] not in "ctC":
        says = rf"{name}: invalid (CPU list|CPU mask|PID): '{re.escape(last)}'"
    with pytest.raises(Failed, match=rf"does not start the trainer(?s:.)*exit code 1: {says}"):
        job(f"{ONE_NODE}srun {binder} {RUN if last[-1] not in 'ctC' else ''}\n")


def test_a_mask_that_is_not_one_is_refused(job):  # noqa: F811
    from labkit.check.checks import Failed

    with pytest.raises(Failed, match="--cpu-bind=mask_cpu:x: invalid CPU mask: 'x'"):
        job(f"{ONE_NODE}export SLURM_CPU_BIND=mask_cpu:x\nsrun {RUN}\n")


def test_the_script_with_the_bound_launcher_is_found_out(home):  # noqa: F811
    from labkit import check

    assert check.script("code/half_speed.sh", given=None).run.bound == 1
    assert check.script("code/single_node.sh", given=None).run.bound is None
