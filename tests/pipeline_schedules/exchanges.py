"""Play a schedule with its sends and receives: pass tokens through queues, with no clock."""

from collections import deque

from pipeline_schedules import Action, Message


def inputs(stage, action, stages, chunks):
    """The tokens that an action needs, derived independently of the package."""
    own = {"F": [], "B": ["F"], "W": ["B"]}[action.kind]
    wanted = [(stage, Action(kind, action.micro_batch, action.chunk)) for kind in own]
    virtual = action.chunk * stages + stage
    before = virtual - 1 if action.kind == "F" else virtual + 1
    if action.kind != "W" and 0 <= before < stages * chunks:
        wanted.append((before % stages, Action(action.kind, action.micro_batch, before // stages)))
    return wanted


def exchange(program, chunks, sends_wait):
    """Pass tokens through queues, and return None or what went wrong.

    Args:
        program: per stage, its actions and messages.
        chunks: model chunks per stage.
        sends_wait: whether a send blocks until its receive is reached, as NCCL's does.
    """
    queues, heads = {}, [0] * len(program)
    has = [set() for _ in program]  # the tokens that a stage holds

    def meets(message):
        items, head = program[message.target], heads[message.target]
        other = items[head] if head < len(items) else None
        return (isinstance(other, Message) and other.end == "receive"
                and other.channel == message.channel and not queues[message.channel])

    def step(stage, item):
        if isinstance(item, Message):
            queue = queues.setdefault(item.channel, deque())
            if item.end == "send":
                if sends_wait and not meets(item):
                    return "wait"
                if (stage, item.action) not in has[stage]:
                    return "nothing to send"
                queue.append((stage, item.action))
            elif not queue:
                return "wait"
            else:
                token = queue.popleft()
                if token != (item.source, item.action):
                    return "wrong tensor"
                has[stage].add(token)
            return None
        if not has[stage].issuperset(inputs(stage, item, len(program), chunks)):
            return "an input is missing"
        has[stage].add((stage, item))
        return None

    while any(head < len(items) for head, items in zip(heads, program, strict=True)):
        waiting = True
        for stage, items in enumerate(program):
            if heads[stage] == len(items):
                continue
            wrong = step(stage, items[heads[stage]])
            if wrong == "wait":
                continue
            if wrong:
                return wrong
            heads[stage] += 1
            waiting = False
        if waiting:
            return "deadlock"
    return "a message that nobody receives" if any(queues.values()) else None
