"""Measurements of the speed of a program, with many agents at once, and of its costs."""

import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import programs
from client import Adapter, AdapterError, Setting, running
from ledger import TOKEN, Ledger, shown_by
from sizes import Sizes

BODY = "The parser keeps the offset of each record now. Please look at the two branches that are left, and tell me when it is merged. "
WATCHER, HERALD = "watcher", "herald"
SYNCS = "fsync,fdatasync,sync_file_range,syncfs,sync,msync"


def quantiles(times: list[float]) -> dict[str, float] | None:
    """Returns the median and the 99th percentile of times, in seconds."""
    if not times:
        return None
    ordered = sorted(times)
    return {"median": statistics.median(ordered), "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], "count": len(ordered)}


class Client:
    """One of the clients that write at the same time; it acts for some of the agents."""

    def __init__(self, adapter: Adapter, number: int, agents: list[str], ledger: Ledger) -> None:
        self.adapter, self.agents, self.ledger = adapter, agents, ledger
        self.dice = random.Random(number)
        self.sends: list[float] = []
        self.reads: list[float] = []
        # What can be answered: the agent and the id.
        self.waiting: list[tuple[str, str]] = []
        self.read_already: Counter[tuple[int, str]] = Counter()
        self.failure: Exception | None = None

    def send(self, sender: str, to: list[str], answers: str | None = None) -> None:
        """Sends one message and notes its time."""
        number, subject = self.ledger.subject()
        more = {"answers": answers} if answers else {}
        start = time.perf_counter()
        answer = self.adapter.try_to("send", sender=sender, to=to, subject=subject, text=f"{BODY}{number}", key=f"key-{number}", **more)
        self.sends.append(time.perf_counter() - start)
        self.ledger.note(number, to, answer["ok"])
        if not answer["ok"] and answer.get("trace"):
            raise AdapterError(answer["trace"])

    def read(self, me: str, ident: str) -> dict:
        """Reads one message and notes its time."""
        start = time.perf_counter()
        message = self.adapter.insist("read", me=me, id=ident)
        self.reads.append(time.perf_counter() - start)
        if found := TOKEN.search(message["text"]):
            self.read_already[int(found[1]), me] += 1
        return message

    def step(self) -> None:
        """Sends one message: to one agent, to four, or an answer to one that waits."""
        sender, kind = self.dice.choice(self.adapter.mine), self.dice.random()
        if kind < 0.25 and self.waiting:
            me, ident = self.waiting.pop()
            self.send(me, [self.read(me, ident)["from"]], ident)
            return
        others = [name for name in self.agents if name != sender]
        self.send(sender, self.dice.sample(others, 4) if kind > 0.85 else [self.dice.choice(others)])

    def run(self, count: int) -> None:
        """Writes so many messages; the thread's starter looks whether it failed."""
        try:
            for _ in range(count):
                self.step()
        except Exception as error:  # noqa: BLE001
            self.failure = error


def together(clients: list[Client], todo: int) -> float:
    """Lets all clients write at once; returns the seconds."""
    threads = [threading.Thread(target=client.run, args=(todo,), daemon=True) for client in clients]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        if client.failure:
            raise client.failure
    return time.perf_counter() - start


def workload(setting: Setting, sizes: Sizes) -> dict:
    """Runs many agents: first the seed, then messages by all clients at once, with answers and groups."""
    agents = [f"agent{number:02}" for number in range(sizes.agents)]
    setting.agents = [*agents, WATCHER, HERALD]
    result: dict = {"messages": sizes.messages}
    with running(setting, [], first=True) as maker:
        result["program"] = maker.ask("version")["program"]
        result["way"], result["keys"] = maker.about["way"], maker.about["keys"]
    with ExitStack() as stack:
        ledger = Ledger(itertools.count())
        clients = []
        for number in range(sizes.clients):
            adapter = stack.enter_context(running(setting, agents[number :: sizes.clients]))
            clients.append(Client(adapter, number, agents, ledger))
        together(clients, sizes.seed // sizes.clients)
        for client in clients:
            client.sends.clear()
            client.waiting = [(name, ident) for name in client.adapter.mine
                              for ident in client.adapter.insist("list", me=name)["ids"]]
        seconds = together(clients, sizes.messages // sizes.clients)
        sends = [taken for client in clients for taken in client.sends]
        result["sends_a_second"] = len(sends) / seconds
        result["send"] = quantiles(sends)
        result["memory"] = memory([client.adapter for client in clients])
        result["list"], result["read"], result["search"] = looking(clients, sizes)
        shown = sum((shown_by(client.adapter, client.adapter.mine) for client in clients), Counter())
        if any(client.adapter.insist("everything", me=client.adapter.mine[0]).get("unread_only") for client in clients):
            shown = sum((client.read_already for client in clients), shown)
        result |= ledger.count(shown)
    result["start"] = start_up(setting, agents[0], sizes)
    result["arrival"], result["polled"], result["syncs"] = arrivals(setting, sizes)
    return result


def looking(clients: list[Client], sizes: Sizes) -> tuple:
    """Measures lists, reads and searches, one after the other, in mailboxes that are full."""
    lists, searches = [], []
    for client in clients:
        client.reads.clear()
        for name in client.adapter.mine:
            start = time.perf_counter()
            idents = client.adapter.insist("list", me=name)["ids"]
            lists.append(time.perf_counter() - start)
            for ident in idents[:sizes.reads]:
                client.read(name, ident)
            start = time.perf_counter()
            answer = client.adapter.try_to("search", me=name, text="two branches that are left")
            if answer["ok"]:
                searches.append(time.perf_counter() - start)
    return quantiles(lists), quantiles([taken for client in clients for taken in client.reads]), quantiles(searches)


def memory(adapters: list[Adapter]) -> dict:
    """Returns the memory of the program's processes while nothing happens, shared memory counted in part."""
    time.sleep(1.0)
    pids = {pid for adapter in adapters for pid in (adapter.about.get("processes") or {}).values()}
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return {"bytes": total, "processes": len(pids)}


def start_up(setting: Setting, me: str, sizes: Sizes) -> float:
    """Returns the seconds from nothing that runs to the first list of a full mailbox; the adapter itself runs already."""
    times = []
    for _ in range(sizes.starts):
        adapter = Adapter(setting, [me])
        try:
            adapter.try_to("version")
            start = time.perf_counter()
            adapter.start()
            adapter.insist("list", me=me)
            times.append(time.perf_counter() - start)
        finally:
            adapter.stop()
            adapter.kill()
    return statistics.median(times)


def arrivals(setting: Setting, sizes: Sizes) -> tuple:
    """Measures the times from the beginning of a send until a reader who waits has the message, and the syncs of a send."""
    times, polled, deadline = [], False, time.monotonic() + sizes.arrival_seconds
    ledger = Ledger(itertools.count(900_000))
    dice = random.Random(1)
    with running(setting, [WATCHER]) as watcher, running(setting, [HERALD]) as herald:
        for _ in range(sizes.arrivals):
            if time.monotonic() > deadline:
                break
            number, subject = ledger.subject()
            watcher.tell("wait", me=WATCHER, subject=subject, seconds=60)
            time.sleep(0.02 + dice.random() * 0.1)
            start = time.perf_counter()
            herald.ask("send", sender=HERALD, to=[WATCHER], subject=subject, text=BODY, key=f"arrival-{number}")
            answer = watcher.answer(400)
            times.append(time.perf_counter() - start)
            if not answer["ok"]:
                raise AdapterError(f"{setting.program.name}: wait: {answer['error']}")
            polled = answer["polled"]
        syncs = count_syncs(herald, ledger)
    return quantiles(times), polled, syncs


def count_syncs(herald: Adapter, ledger: Ledger) -> float | None:
    """Counts the calls a send that ask for durability, as strace sees them in the program and its adapter."""
    sends, pids = 5, [herald.process.pid, *(herald.about.get("processes") or {}).values()]
    log = herald.scratch / "syncs"
    words = ["strace", "-f", "-qq", "-e", f"trace={SYNCS}", "-o", log]
    for pid in pids:
        words += ["-p", str(pid)]
    tracer = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        if tracer.poll() is not None:
            return None
        for _ in range(sends):
            number, subject = ledger.subject()
            herald.ask("send", sender=HERALD, to=[WATCHER], subject=subject, text=BODY, key=f"sync-{number}")
        time.sleep(0.2)
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
    calls = re.findall(r"^\d+ +(?:sync|fsync|fdatasync|sync_file_range|syncfs|msync)\(", log.read_text(), re.MULTILINE)
    return len(calls) / sends


def tokens(setting: Setting) -> dict:
    """Counts the tokens that an agent writes and reads to look at its mail, read three messages and answer one."""
    setting.agents = ["anna", "bob"]
    texts = [f"Step {number} is done. {BODY}" for number in (1, 2, 3)]
    with running(setting, [], first=True):
        pass
    with running(setting, ["anna"]) as anna:
        for number, text in enumerate(texts):
            anna.ask("send", sender="anna", to=["bob"], subject=f"step {number + 1}", text=text, key=f"step-{number}")
    with running(setting, ["bob"]) as bob:
        steps = bob.ask("session", me="bob")["steps"]
    said = "\n".join(part for step in steps for part in step)
    missing = [text for text in texts if text.strip() not in said and text.strip() not in said.replace("\\n", "\n")]
    if missing:
        raise AdapterError(f"{setting.program.name}: the session shows {3 - len(missing)} of 3 messages: {said}")
    done = subprocess.run(["node", programs.HERE / "tokens.mjs"], check=True, stdout=subprocess.PIPE,
                          input=json.dumps(["".join(step[0] for step in steps), "".join(step[1] for step in steps)]).encode(),
                          env={**os.environ, **programs.environment(setting.msgfs)})
    written, read = json.loads(done.stdout)
    return {"written": written, "read": read, "commands": len(steps), "steps": steps}
