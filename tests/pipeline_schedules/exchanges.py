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


class Exchange:
    """Queues between the stages of a program, and the tokens that each stage holds."""

    def __init__(self, program, chunks, sends_wait):
        self.program, self.chunks, self.sends_wait = program, chunks, sends_wait
        self.queues, self.heads = {}, [0] * len(program)
        self.has = [set() for _ in program]

    def step(self, stage):
        """Do a stage's next item; return None, "wait", or what is wrong with it."""
        item = self.program[stage][self.heads[stage]]
        if isinstance(item, Message):
            wrong = self.send(stage, item) if item.end == "send" else self.receive(stage, item)
        elif self.has[stage].issuperset(inputs(stage, item, len(self.program), self.chunks)):
            self.has[stage].add((stage, item))
            wrong = None
        else:
            wrong = "an input is missing"
        self.heads[stage] += wrong is None
        return wrong

    def send(self, stage, item):
        queue = self.queues.setdefault(item.queue, deque())
        if self.sends_wait and not self.meets(item):
            return "wait"
        if (stage, item.action) not in self.has[stage]:
            return "nothing to send"
        queue.append((stage, item.action))
        return None

    def receive(self, stage, item):
        queue = self.queues.setdefault(item.queue, deque())
        if not queue:
            return "wait"
        token = queue.popleft()
        if token != (item.source, item.action):
            return "wrong tensor"
        self.has[stage].add(token)
        return None

    def meets(self, message):
        """Return True if the peer has reached this send's receive."""
        items, head = self.program[message.target], self.heads[message.target]
        other = items[head] if head < len(items) else None
        return (isinstance(other, Message) and other.end == "receive"
                and other.queue == message.queue and not self.queues[message.queue])


def exchange(program, chunks, sends_wait):
    """Pass tokens through queues, and return None or what went wrong.

    Args:
        program: per stage, its actions and messages.
        chunks: model chunks per stage.
        sends_wait: whether a send blocks until its receive is reached, as NCCL's does.
    """
    state = Exchange(program, chunks, sends_wait)
    while any(head < len(items) for head, items in zip(state.heads, program, strict=True)):
        results = []
        for stage, items in enumerate(program):
            if state.heads[stage] < len(items):
                results.append(state.step(stage))
                if results[-1] not in (None, "wait"):
                    return results[-1]
        if None not in results:
            return "deadlock"
    return "a message that nobody receives" if any(state.queues.values()) else None
