"""Loss of power, replayed: files as they would be if it came before any one system call of a run.

    replay.py TRACE BED ACCEPTED MSGFS SECONDS

TRACE is what strace wrote of a whole run of msgfs, BED the folder all of it lies in, ACCEPTED the texts
whose close returned 0, each with the time it did. For as many cuts as fit in SECONDS the files are built
anew, msgfs sends one more message there, which recovers first, and the log is counted.

What counts as kept: of a file the bytes it had when its last sync began, of a folder the names it had.
A disk may keep more, and may keep it of one file and not of another; so each cut is tried with nothing
more, with all of the state folder, and with all of the store.
"""
import json, os, random, re, shutil, subprocess, sys, time


class File:
    def __init__(self):
        self.now, self.kept = bytearray(), b""


class Folder:
    def __init__(self):
        self.now, self.kept = {}, {}


class Open:
    def __init__(self, node, append):
        self.node, self.append, self.at = node, append, 0


def unhex(text):
    return bytes(int(h, 16) for h in re.findall(r"\\x([0-9a-f]{2})", text))


CALL = re.compile(r"^(\d+) +([\d.]+) (\w+)\((.*)\) += (-?\d+)(?:<(.*?)>)?(?: .*)?$")
STARTED = re.compile(r"^(\d+) +([\d.]+) (.*) <unfinished \.\.\.>$")
RESUMED = re.compile(r"^(\d+) +([\d.]+) <\.\.\. (\w+) resumed>(.*)$")


def events(trace):
    """Calls that succeeded, in the order in which they took effect, and where each began.

    A call takes effect when it ends; but the number that `close` gives up is free once it began, and
    another thread may have it before it ends.

    A child process has descriptors of its own under the same numbers. It changes no file, and its calls are left out.
    """
    begun, out, children = {}, [], set()
    for number, line in enumerate(open(trace, errors="replace")):
        line = line.rstrip("\n")
        if m := STARTED.match(line):
            begun[m[1]] = (number, m[2], m[3])
            continue
        start = number
        if m := RESUMED.match(line):
            if m[1] not in begun:
                continue
            start, when, head = begun.pop(m[1])
            line = f"{m[1]} {when} {head}{m[4]}"
        if not (m := CALL.match(line)) or int(m[5]) < 0:
            continue
        if m[3] in ("clone", "clone3", "fork", "vfork"):
            children |= set() if "CLONE_FILES" in m[4] else {m[5]}
            continue
        number = start if m[3] == "close" else number
        out.append((m[1], (start, number, float(m[2]), m[3], m[4], int(m[5]), m[6])))
    return sorted((call for pid, call in out if pid not in children), key=lambda call: call[1])


class Disk:
    def __init__(self, bed):
        self.bed, self.root, self.fds, self.syncs = bed, Folder(), {}, {}

    def parts(self, path):
        path = os.path.normpath(path)
        if path != self.bed and not path.startswith(self.bed + "/"):
            return None
        return [p for p in path[len(self.bed) :].split("/") if p]

    def find(self, path):
        node, parts = self.root, self.parts(path)
        for part in parts if parts is not None else [None]:
            node = node.now.get(part) if isinstance(node, Folder) else None
        return node

    def place(self, path):
        """The folder of a path and its name there, if it lies in the bed."""
        if not self.parts(path):
            return None, None
        folder, name = os.path.split(os.path.normpath(path))
        return self.find(folder), name

    @staticmethod
    def paths(args):
        """The paths of a call: those that are relative to an open folder, made absolute."""
        out, base = [], None
        for fd, text in re.findall(r'(?:AT_FDCWD|\d+)<([^>]*)>|"((?:\\x[0-9a-f]{2})*)"', args):
            if text:
                path = unhex(text).decode(errors="replace")
                out.append(os.path.join(base or "/", path))
            elif fd:
                base = unhex(fd).decode(errors="replace") or fd
        return out

    def begin(self, call, args):
        """What a sync that begins now will have kept."""
        fd = self.fds.get(int(re.match(r"\d+", args)[0]))
        if fd and isinstance(fd.node, File):
            return fd.node, bytes(fd.node.now)
        return (fd.node, dict(fd.node.now)) if fd else None

    def apply(self, call, args, result, path, begun):
        number = lambda: int(re.match(r"\d+", args)[0])
        if call in ("openat", "open", "creat"):
            found = self.paths(args)
            path = unhex(path or "").decode(errors="replace") or (found and found[0])
            path = path.removesuffix(" (deleted)")
            folder, name = self.place(path)
            if isinstance(folder, Folder) and name not in folder.now and "O_CREAT" in args:
                folder.now[name] = File()
            node = self.find(path)
            if node is None:
                self.fds.pop(result, None)
                return
            if "O_TRUNC" in args and isinstance(node, File):
                node.now = bytearray()
            self.fds[result] = Open(node, "O_APPEND" in args)
        elif call == "close":
            self.fds.pop(number(), None)
        elif call in ("fcntl", "dup") and (call == "dup" or "F_DUPFD" in args):
            self.fds.pop(result, None)
            if number() in self.fds:
                self.fds[result] = self.fds[number()]
        elif call in ("write", "pwrite64"):
            fd = self.fds.get(number())
            if fd and isinstance(fd.node, File):
                data = unhex(re.search(r'"((?:\\x[0-9a-f]{2})*)"', args)[1])[:result]
                at = int(args.rsplit(",", 1)[1]) if call == "pwrite64" else fd.at
                at = len(fd.node.now) if fd.append else at
                fd.node.now.extend(bytes(max(0, at - len(fd.node.now))))
                fd.node.now[at : at + result] = data
                fd.at = at + result if call == "write" else fd.at
        elif call == "ftruncate":
            fd = self.fds.get(number())
            if fd:
                size = int(args.rsplit(",", 1)[1])
                fd.node.now[size:] = bytes(max(0, size - len(fd.node.now)))
        elif call in ("fsync", "fdatasync") and begun:
            begun[0].kept = begun[1]
        elif call.startswith(("mkdir", "rename", "link", "unlink", "rmdir")):
            found = self.paths(args)
            folder, name = self.place(found[0]) if found else (None, None)
            if not isinstance(folder, Folder):
                return
            if call.startswith("mkdir"):
                folder.now[name] = Folder()
            elif call.startswith(("unlink", "rmdir")):
                folder.now.pop(name, None)
            elif (node := folder.now.get(name)) is not None and len(found) > 1:
                if call.startswith("rename"):
                    del folder.now[name]
                folder, name = self.place(found[1])
                folder.now[name] = node

    def build(self, to, more):
        """Makes the files as they are kept, and the folders in `more` as they are."""

        def make(node, path, whole):
            os.mkdir(path, 0o700)
            for name, child in (node.now if whole else node.kept).items():
                below = os.path.join(path, name)
                if isinstance(child, Folder):
                    make(child, below, whole)
                    continue
                with open(below, "wb") as f:
                    f.write(child.now if whole else child.kept)
                os.chmod(below, 0o600)

        os.mkdir(to, 0o700)
        for name in FOLDERS:
            make(self.root.now[name], os.path.join(to, name), name in more)


def count(log):
    bodies = {}
    try:
        lines = open(log, "rb").read().split(b"\n")
    except FileNotFoundError:
        return bodies
    for line in lines:
        try:
            body = json.loads(line)["body"]
        except (ValueError, KeyError, TypeError):
            continue
        bodies[body] = bodies.get(body, 0) + 1
    return bodies


def try_cut(disk, more, accepted, msgfs, what):
    to = disk.bed + ".cut"
    shutil.rmtree(to, ignore_errors=True)
    disk.build(to, more)
    env = {k: v.replace(disk.bed, to) for k, v in os.environ.items()}
    sent = subprocess.run([msgfs, "write", "--me", "bar", "outbox/probe"], input=b"probe\n", env=env, cwd=to, capture_output=True)
    bodies = count(os.path.join(to, "store/log-bar.jsonl"))
    shutil.rmtree(to)
    wrong = [b for b in accepted if bodies.get(b, 0) != 1] + [b for b, n in bodies.items() if n > 1]
    if sent.returncode or wrong or bodies.get("probe") != 1:
        sys.exit(f"{what}: {sent.returncode} {sent.stderr.decode()}\nnot there exactly once: {wrong}\nthere: {bodies}")


FOLDERS = ["home", "state", "cache", "config", "data", "run", "store"]


def main():
    trace, bed, accepted, msgfs, seconds = sys.argv[1:]
    bed = bed.rstrip("/")
    seed = int(os.environ.get("MSGFS_TEST_SEED", time.time_ns()))
    dice = random.Random(seed)
    told = [line.split(" ", 1) for line in open(accepted).read().splitlines()]
    told = [(float(when), text) for when, text in told]
    calls = events(trace)
    changes = [i for i, e in enumerate(calls) if e[3] not in ("openat", "close", "fcntl") or "O_CREAT" in e[4]]
    # Each cut is the moment before one change begins. What was accepted until then is there.
    disk, cuts, deadline = Disk(bed), 0, time.time() + float(seconds)
    for name in FOLDERS:
        disk.root.now[name] = Folder()
    began = {}
    per_cut, started = 0.3, time.time()
    changing = set(changes)
    for i, (start, end, when, call, args, result, path) in enumerate(calls):
        # Syncs that begin before this call ends have what was there when they began.
        for later in calls[i : i + 40]:
            if later[3] in ("fsync", "fdatasync") and later[0] <= end and later[0] not in began:
                began[later[0]] = disk.begin(later[3], later[4])
        left = [c for c in changes if c >= i]
        chance = (deadline - time.time()) / per_cut / 3 / max(1, len(left))
        if i in changing and dice.random() < chance:
            there = [text for at, text in told if at < when]
            for more in ([], ["state"], ["store"]):
                try_cut(disk, more, there, msgfs, f"seed {seed}, before {call} ({i}) with all of {more or 'nothing'}")
            cuts += 1
            per_cut = max(0.01, (time.time() - started) / cuts / 3)
        disk.apply(call, args, result, path, began.get(start))
    print(f"seed {seed}: {cuts} of {len(changes)} cuts, {len(told)} messages")
    if not told or not cuts:
        sys.exit("nothing was tested")
    try_cut(disk, FOLDERS, [text for _, text in told], msgfs, f"seed {seed}, whole")


main()
