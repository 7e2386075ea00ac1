"""From a schedule to programs: the actions of each stage, and its sends and receives."""


def parse(action):
    """Return the kind, micro-batch, and chunk of an action: ("F", 3, 0) for F3, and ("B", 3, 1) for B3.1."""
    number, _, chunk = action[1:].partition(".")
    return action[0], int(number), int(chunk or 0)


def spell(kind, number, chunk):
    """Return an action, given what `parse` returns."""
    return f"{kind}{number}.{chunk}" if chunk else f"{kind}{number}"


def consumer(stage, action, stages, chunks=1):
    """Return the stage and the action that take the result of an action, or None.

    Chunk c of stage s is number c * stages + s of the model's parts.
    """
    kind, number, chunk = parse(action)
    part = chunk * stages + stage + {"F": 1, "B": -1}.get(kind, stages * chunks)
    if not 0 <= part < stages * chunks:
        return None
    return part % stages, spell(kind, number, part // stages)


def add_communication(schedule):
    """Return the program of each stage: its actions in their order, and its sends and receives.

    "send F0 to 1" sends the result of F0, and "recv F0 from 0" receives the input of F0. A send may block until its
    receive has begun.

    Raises ValueError if the actions themselves are in an order that cannot run.
    """
    stages = len(schedule)
    chunks = 1 + max((parse(action)[2] for actions in schedule for action in actions), default=0)
    programs, positions, received, done = [[] for _ in schedule], [0] * stages, set(), set()

    def is_ready(stage, action):
        kind, number, chunk = parse(action)
        if kind == "W":
            return (stage, spell("B", number, chunk)) in done
        if kind == "B" and (stage, spell("F", number, chunk)) not in done:
            return False
        needs_nothing = (stage, chunk) == ((0, 0) if kind == "F" else (stages - 1, chunks - 1))
        return needs_nothing or (stage, action) in received

    while any(position < len(actions) for position, actions in zip(positions, schedule, strict=True)):
        ready = [stage for stage in range(stages) if positions[stage] < len(schedule[stage])
                 and is_ready(stage, schedule[stage][positions[stage]])]
        if not ready:
            waiting = [f"stage {stage} waits for the input of {actions[position]}" for stage, (position, actions) in
                       enumerate(zip(positions, schedule, strict=True)) if position < len(actions)]
            raise ValueError("this schedule deadlocks: " + ", ".join(waiting))
        for stage in ready:
            action = schedule[stage][positions[stage]]
            positions[stage] += 1
            done.add((stage, action))
            programs[stage].append(action)
            target = consumer(stage, action, stages, chunks)
            if target is not None:  # at once, and at both ends: all transfers are in one order
                programs[stage].append(f"send {action} to {target[0]}")
                programs[target[0]].append(f"recv {target[1]} from {stage}")
                received.add(target)
    return programs
