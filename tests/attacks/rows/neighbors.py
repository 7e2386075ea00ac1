"""Two students graded at the same time: one broadcasts working answers, the other only listens.

Each pair uses another kernel object that two sandboxes share. The message is the source text of
both answers, so a listener without a line of correct code would pass every drawn case.
"""

from __future__ import annotations

from tests.attacks.attack import Attack, attack

SECONDS = 4  # that either side spends on it: less than the limit of a cell

COMMON = f'''
import ctypes, fcntl, glob, os, struct, time
MESSAGE = b"\\xa52*x,3*x"
BITS = [byte >> bit & 1 for byte in MESSAGE for bit in range(8)]
FILES = sorted(glob.glob(os.path.dirname(os.__file__) + "/encodings/*.py"))[-len(BITS) - 1:]
END, kept = time.monotonic() + {SECONDS}, []
def decoded(bits):
    values = [sum(bit << place for place, bit in enumerate(bits[at:at + 8]))
              for at in range(0, len(bits), 8)]
    return bytes(values) if len(bits) == len(BITS) and values[0] == 0xa5 else b""
def lock(at, kind):
    return struct.pack("hhqqi4x", kind, 0, at, 1, 0)
def keep_sending(frame):
    while time.monotonic() < END:
        frame()
def receive(frame):
    """Until a message comes in; the listener's code from here on is that of the classmate."""
    while time.monotonic() < END:
        try:
            message = frame()
        except OSError as error:
            message = print(error)
        if message:
            return message[1:].decode().split(",")
        time.sleep(0.01)
    return "0", "0"
'''
# By name: what the sender does, and what the listener does.
CHANNELS = {
    "flock": ('''
for path, bit in zip(FILES, BITS):
    kept.append(open(path))
    if bit:
        fcntl.flock(kept[-1], fcntl.LOCK_EX)
time.sleep(END - time.monotonic())
''', '''
def frame():
    bits = []
    for path, _ in zip(FILES, BITS):
        with open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                bits.append(0)
            except BlockingIOError:
                bits.append(1)
    return decoded(bits)
'''),
    "records": ('''
kept.append(open(FILES[0]))
for at, bit in enumerate(BITS):
    if bit:
        fcntl.fcntl(kept[0], fcntl.F_SETLK, lock(at, fcntl.F_RDLCK))
time.sleep(END - time.monotonic())
''', '''
def frame():
    with open(FILES[0]) as file:
        found = [fcntl.fcntl(file, fcntl.F_GETLK, lock(at, fcntl.F_WRLCK))
                 for at, _ in enumerate(BITS)]
    return decoded([int(struct.unpack_from("h", one)[0] != fcntl.F_UNLCK) for one in found])
'''),
    # full: a frame begins; zero: the next bit is 1; null: here it is
    "stamps": ('''
def frame():
    os.utime("/dev/full")
    for bit in BITS:
        if bit:
            os.utime("/dev/zero")
        os.utime("/dev/null")
        time.sleep(0.012)
    time.sleep(0.02)
keep_sending(frame)
''', '''
def stamps():
    return [os.stat(f"/dev/{name}").st_mtime_ns for name in ("null", "zero", "full")]
def frame():
    bits, before = [], stamps()
    while time.monotonic() < END:
        now = stamps()
        if now[2] != before[2]:
            bits = []
        if now[0] != before[0]:
            bits.append(int(now[1] != before[1]))
            if len(bits) == len(BITS):
                return decoded(bits)
            before = now
        before[2] = now[2]
'''),
    # the last file: a frame begins; the others are opened where their bit is 1
    "opens": ('''
def frame():
    for path, bit in zip([FILES[-1], *FILES], [1, *BITS]):
        if bit:
            open(path).close()
    time.sleep(0.05)
keep_sending(frame)
''', '''
libc = ctypes.CDLL(None, use_errno=True)
number = libc.inotify_init1(os.O_NONBLOCK)
watches = [libc.inotify_add_watch(number, path.encode(), 0x20) for path in FILES]
def frame():
    time.sleep(0.2)
    events, at, seen = os.read(number, 65536), 0, []
    while at < len(events):
        watch, _, _, length = struct.unpack_from("iIII", events, at)
        at += 16 + length
        seen.append(watch)
    frames = [] if watches[-1] not in seen else [[]]
    for watch in seen:
        if watch == watches[-1]:
            frames.append([])
        elif frames:
            frames[-1].append(watch)
    for one in frames:
        message = decoded([int(watch in one) for watch in watches[:-1]])
        if message:
            return message
'''),
    # eighteen terminals: a frame begins; else one more than the next four bits
    "counts": ('''
def frame():
    for symbol in [17, *(value for byte in MESSAGE for value in (byte & 15, byte >> 4))]:
        opened = [os.openpty() for _ in range(symbol + 1)]
        time.sleep(0.02)
        for number in sum(opened, ()):
            os.close(number)
        time.sleep(0.02)
keep_sending(frame)
''', '''
def count():
    with open("/proc/sys/kernel/pty/nr") as file:
        return int(file.read())
lowest = count()
def frame():
    global lowest
    symbols, most = [], 0
    while time.monotonic() < END:
        now = count()
        lowest, most = min(lowest, now), max(most, now - lowest)
        if now == lowest and most:
            symbols = [] if most == 18 else [*symbols, most - 1]
            most = 0
        if len(symbols) == 2 * len(MESSAGE):
            return decoded([value >> bit & 1 for value in symbols for bit in range(4)])
'''),
}
TITLES = {"flock": ("talks", "flock on files that both read"),
          "records": ("records", "record locks on a file that both read"),
          "stamps": ("stamps", "the time stamps of /dev/null and its neighbors"),
          "opens": ("opens", "notifications of which files are opened"),
          "counts": ("counts", "the machine's number of open terminals")}
HONEST = "def double(x):\n    return 2 * x\n", "def triple(x):\n    return 3 * x\n"
LISTENER = '''
twice, thrice = receive(frame)
def double(x):
    return eval(twice)
''', '''
def triple(x):
    return eval(thrice)
'''


def pair(channel: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the answers of the one who broadcasts and of the one who listens."""
    send, listen = CHANNELS[channel]
    guarded = "try:\n" + "".join(f"    {line}\n" for line in send.splitlines())
    guarded += "except OSError as error:\n    print(error)\n"
    return ((COMMON + guarded + HONEST[0], HONEST[1]),
            (COMMON + listen + LISTENER[0], LISTENER[1]))


def _attacks(number: int, channel: str) -> list[Attack]:
    name, words = TITLES[channel]
    one, two = pair(channel)
    small = channel == "flock"
    return [attack(f"m{number}", f"{name}-one", f"Broadcasts its answers by {words}", score=5.0,
                   double=one[0], triple=one[1], small=small),
            attack(f"m{number}", f"{name}-two", f"Has no answers and listens to {words}",
                   double=two[0], triple=two[1], small=small)]


ATTACKS = [one for number, channel in enumerate(CHANNELS, 1) for one in _attacks(number, channel)]
