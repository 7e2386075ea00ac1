#!/bin/bash
# Every command of the image goes through here, in the order of Jupyter's docker-stacks:
# hooks of start-notebook.d, a name for the user, hooks of before-notebook.d, the command.
set -e

complain() {
    echo "start.sh: error: $*" >&2
    exit 1
}

# *.sh is sourced, so it may set variables; what is executable is run; the rest is passed over.
run_hooks() {
    local hook
    for hook in "$1"/*; do
        if [ ! -f "$hook" ]; then
            continue
        elif [[ $hook == *.sh ]]; then
            # shellcheck disable=SC1090
            source "$hook" || echo "start.sh: $hook has failed, going on" >&2
        elif [ -x "$hook" ]; then
            "$hook" || echo "start.sh: $hook has failed, going on" >&2
        else
            echo "start.sh: $hook is neither *.sh nor executable: left out" >&2
        fi
    done
}

# Slurm and many programs want a name for the user number, whatever `--user` says.
name_the_user() {
    local names=/var/lib/extrausers uid=$1 gid=$2 name=${NB_USER:-jovyan}
    if ! getent group "$gid" > /dev/null; then
        echo "group$gid:x:$gid:" >> "$names/group" || true
    fi
    if ! getent passwd "$uid" > /dev/null; then
        if getent passwd "$name" > /dev/null; then name=user$uid; fi
        # Names of the system's groups are not read from there; group 0 may write the other file.
        if [ -w /etc/passwd ]; then names=/etc; fi
        echo "$name:x:$uid:$gid::$HOME:/bin/bash" >> "$names/passwd" || true
    fi
    getent passwd "$uid" > /dev/null || complain "user $uid of group $gid has no name here, and" \
        "Slurm wants one: start as 1000:100 (no --user), or without --read-only; the group may be" \
        "100, 0, or 500 and above"
}

# What jupyter/docker-stacks, DockerSpawner and zero-to-jupyterhub start is one thing here.
case $1 in
    jupyterhub-singleuser | start-singleuser.py | start-singleuser.sh)
        shift; set -- lab start --hub "$@" ;;
    start-notebook.py | start-notebook.sh)
        shift; set -- lab start --ip 0.0.0.0 --port 8888 "$@" ;;
esac
if [[ "$1 $2" =~ ^lab\ (start|formgrader)$ ]] && [ "$3" != --hub ] \
    && [ -n "$JUPYTERHUB_API_TOKEN" ]; then
    set -- lab "$2" --hub
fi

drop=()
run_hooks /usr/local/bin/start-notebook.d
if [ "$(id -u)" = 0 ] && [ "${NB_UID:-1000}" != 0 ]; then
    if [[ ! $NB_UID:$NB_GID =~ ^[0-9]+:[0-9]+$ ]]; then
        complain "NB_UID=$NB_UID NB_GID=$NB_GID are not two numbers; the default is 1000 and 100"
    fi
    name_the_user "$NB_UID" "$NB_GID"
    if [ "$CHOWN_HOME" = yes ] || [ "$CHOWN_HOME" = 1 ]; then
        chown "$NB_UID:$NB_GID" "$HOME"
    fi
    drop=(setpriv --reuid "$NB_UID" --regid "$NB_GID" --clear-groups)
else
    name_the_user "$(id -u)" "$(id -g)"
fi
run_hooks /usr/local/bin/before-notebook.d

# Said here, where it is known that this is a container; other commands may need no home.
if [[ "$1 $2" =~ ^lab\ (start|formgrader)$ ]]; then
    for folder in "$HOME" /tmp; do
        if ! "${drop[@]}" test -w "$folder"; then
            complain "$folder is read-only for user $("${drop[@]}" id -u):$("${drop[@]}" id -g)." \
                "Mount what may be written: -v labs-home:$HOME (without :ro)," \
                "with --read-only also --tmpfs /tmp"
        fi
    done
fi
exec "${drop[@]}" "${@:-bash}"
