#!/bin/bash
# Print the given processes and all their ancestors, with the CPUs that each may use.
#   bash code/cpus_of.sh PID ...
echo "PID PPID CPUS COMMAND"
for pid in "$@"; do
    while [ -r "/proc/$pid/status" ]; do
        parent=$(awk '/^PPid/ {print $2}' "/proc/$pid/status")
        cpus=$(awk '/^Cpus_allowed_list/ {print $2}' "/proc/$pid/status")
        echo "$pid $parent $cpus $(tr '\0' ' ' <"/proc/$pid/cmdline" | cut --characters=1-60)"
        pid=$parent
    done
done | sort --numeric-sort --unique
