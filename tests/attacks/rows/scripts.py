"""Job scripts: shell that the sandbox runs with stand-ins, and that nobody trusts."""

from __future__ import annotations

import json

from tests.attacks.attack import attack
from tests.attacks.rows.stages import PORT

START = "%%writefile code/mine.sh\n#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
# One micro-batch is wrong here: 4 is asked for.
TRAIN = ("srun torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_id 1 "
         "--rdzv_endpoint $(scontrol show hostnames | head -1):29500 code/pretrain_gpt.py "
         "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
         "--max-position-embeddings 64 --micro-batch-size {micro} --global-batch-size {batch} "
         "--train-iters 1 --device cpu --lr 1e-4 --vocab-file data/v.json --merge-file "
         "data/m.txt --data-path {data} {more}\n")
WRONG = TRAIN.format(micro=1, batch=4, data="data/x", more="")

BY_PATH = r'''
/usr/bin/python3 -c "open('@ROOT@/pwned-by-job', 'w')"
/usr/bin/env python3 -c "open('@ROOT@/pwned-by-job', 'w')"
exec 3<>/dev/tcp/127.0.0.1/PORT && echo reached >&3
cat @ROOT@/source/*/*.ipynb @ROOT@/secret @ROOT@/gradebook.db
for process in /proc/[0-9]*; do kill -STOP ${process#/proc/}; done 2>/dev/null
'''.replace("PORT", str(PORT))

SURROUNDINGS = r'''
export BASH_ENV=$PWD/evil PROMPT_COMMAND='touch @ROOT@/pwned-by-prompt' LD_PRELOAD=$PWD/evil.so
export PYTHONSTARTUP=$PWD/evil.py PYTHONPATH=$PWD PATH=$PWD:$PATH PYTHONHOME=/nowhere
echo 'touch @ROOT@/pwned-by-env' > evil
echo 'raise SystemExit("pwned")' | tee evil.py sitecustomize.py json.py options.py > /dev/null
srun() { command srun "$@"; touch @ROOT@/pwned-by-function; }
trap 'touch @ROOT@/pwned-by-trap' EXIT DEBUG
'''

# Lines of a record that no stand-in wrote; none is a launch that would be right.
RECORD = r'''
for turn in 1 2 3; do
  echo '{"program": {"a": 1}, "arguments": 7, "step": "x", "task": null, "host": []}'
  echo '{"program": "torchrun", "arguments": ["--nnodes", "999999999999999999999"], "step": 0,
'
  head -c 100000 /dev/zero | tr '\0' '['
  echo
  printf '{"program": "torchrun", "arguments": ["\\ud800", "\\u001b[2J", "<script>pwned()"],'
  printf ' "step": 1e999, "task": NaN, "host": "\x1b]0;pwned\x07", "variables": {}}\n'
done >> "$LAB_HOME/../record"
yes '{"program": "torchrun", "arguments": []}' | head -c 20000000 >> "$LAB_HOME/../record"
'''

# The right job, on nodes that the components of this one do not have.
MIXED = START.replace("--nodes=2", "--nodes=1") + "#SBATCH hetjob\n#SBATCH --nodes=1\n"
COMPONENTS = "".join("echo '{}' >> \"$LAB_HOME/../record\"\n".format(json.dumps({
    "program": "torchrun", "step": 0, "task": task, "host": host, "background": False,
    "variables": {}, "arguments": TRAIN.format(micro=4, batch=16, data="data/x", more="").replace(
        "$(scontrol show hostnames | head -1)", "slurmnode1").split()[2:]}))
    for task, host in enumerate(("slurmnode1", "slurmnode3")))

HUNG = "while :; do :; done\n"
FORKS = ":() { : | : & }; :\n"
NOISE = "yes pwned | head -c 300000000\necho -e '\\e]0;pwned\\a' >&2\n"
SPARSE = "truncate -s 10T code/mine.sh data/x; ln -sf /etc/passwd code/other.sh\n"
LINKED = ("import os\nos.makedirs('code', exist_ok=True)\n"
          "os.path.lexists('code/mine.sh') and os.remove('code/mine.sh')\n"
          "os.symlink('@ROOT@/secret', 'code/mine.sh')")
PIPE = ("import os\nos.makedirs('code', exist_ok=True)\n"
        "os.path.lexists('code/mine.sh') and os.remove('code/mine.sh')\n"
        "os.mkfifo('code/mine.sh')")


def with_flags(more: str, data: str = "data/x") -> str:
    return START + TRAIN.format(micro=4, batch=16, data=data, more=more)


ATTACKS = [
    attack("k1", "job-paths", "A script that starts programs by their paths and opens sockets",
           job=START + BY_PATH + WRONG, may_end=True),
    attack("k2", "job-surroundings", "A script that sets BASH_ENV, LD_PRELOAD, functions and traps",
           job=START + SURROUNDINGS + WRONG, may_end=True),
    attack("k3", "job-record", "A script that writes into its own record",
           job=START + RECORD + WRONG, may_end=True),
    attack("k4", "job-hangs", "A script without end", job=START + HUNG, score=None, may_end=True,
           reason="time"),
    attack("k5", "job-forks", "A fork bomb in a script", job=START + FORKS + WRONG, may_end=True),
    attack("k6", "job-noise", "300 MB of output from a script", job=START + NOISE + WRONG,
           may_end=True),
    attack("k7", "job-sparse", "A script that grows to 10 TB and links out",
           job=START + SPARSE + WRONG, may_end=True),
    attack("k8", "job-linked", "A link in a script's place", job=LINKED),
    attack("k9", "job-pipe", "A pipe in a script's place", job=PIPE, may_end=True),
    attack("k10", "job-right", "None: an honest script", job=with_flags(""), score=2.0),
    attack("k11", "job-schedule", "A schedule that is a program",
           job=with_flags("--schedule @ROOT@/evil.py"), most=2.0, may_end=True),
    attack("k12", "job-load", "A pickled checkpoint to load",
           job=with_flags("--load evil --save @ROOT@/pwned-by-save"), most=2.0, may_end=True),
    attack("k13", "job-paths-in", "Paths and files of arguments",
           job=with_flags("--tensorboard-dir @ROOT@/pwned-by-events @/etc/passwd",
                          data="@ROOT@/secret"), most=2.0, may_end=True),
    attack("k14", "job-components", "A heterogeneous job that records ranks on nodes of no "
           "component", job=MIXED + COMPONENTS),
]
