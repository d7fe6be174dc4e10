"""Scenarios in which a program can lose, double or believe: kills, a full disk, a cut of power, forgeries, a day away."""

import itertools
import os
import random
import re
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import disks
from client import Adapter, AdapterError, Gone, Setting, running
from ledger import TOKEN, Ledger, shown_by
from sizes import Sizes
from speed import BODY

SENDER, READERS = "sender", ["reader1", "reader2", "reader3"]
KEY = re.compile(r"[0-9a-f]{16}")
PRELOAD = ("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1")


class Round:
    """A sender who notes what he was told."""

    def __init__(self, adapter: Adapter, ledger: Ledger) -> None:
        self.adapter, self.ledger = adapter, ledger
        self.dice = random.Random(7)

    def message(self) -> dict:
        """Makes a new message, which carries its number."""
        number, subject = self.ledger.subject()
        return {"number": number, "to": [self.dice.choice(READERS)],
                "request": {"subject": subject, "text": f"{BODY * 6}{number}", "key": f"key-{number}"}}

    def tell(self, message: dict) -> None:
        """Sends without waiting."""
        self.adapter.tell("send", sender=SENDER, to=message["to"], **message["request"])

    def send(self, message: dict) -> bool:
        """Sends and notes what the program says."""
        answer = self.adapter.try_to("send", sender=SENDER, to=message["to"], **message["request"])
        self.ledger.note(message["number"], message["to"], answer["ok"])
        return answer["ok"]

    def insist(self, message: dict) -> bool:
        """Sends until it is accepted, as an agent does; gives up after ten tries."""
        for pause in range(10):
            if self.send(message):
                return True
            time.sleep(0.02 * pause)
        return False


def counted(setting: Setting, ledger: Ledger) -> dict:
    """Counts with a program that starts anew."""
    with running(setting, READERS) as readers:
        return ledger.count(shown_by(readers, READERS))


def made(setting: Setting) -> None:
    """Makes the store and its agents."""
    setting.agents = [SENDER, *READERS]
    with running(setting, [], first=True):
        pass


def kills(setting: Setting, sizes: Sizes) -> dict:
    """Kills the program in each send, at a moment by chance, and sends again until it is accepted."""
    made(setting)
    ledger, hits, deadline = Ledger(itertools.count()), 0, time.monotonic() + sizes.kill_seconds
    with running(setting, [SENDER]) as adapter:
        sender = Round(adapter, ledger)
        times = []
        for _ in range(10):
            start = time.perf_counter()
            if not sender.send(sender.message()):
                raise AdapterError(f"{setting.program.name}: cannot send before the kills")
            times.append(time.perf_counter() - start)
        usual = statistics.median(times)
        stuck = 0
        while hits < sizes.kills and time.monotonic() < deadline:
            message = sender.message()
            sender.tell(message)
            time.sleep(sender.dice.random() * usual * 1.1)
            hit = adapter.kill_now(SENDER)
            try:
                accepted = adapter.answer(60)["ok"]
            except Gone:
                accepted = False
            hits += bool(hit)
            if hit:
                adapter.revive(SENDER)
            ledger.note(message["number"], message["to"], accepted)
            if not accepted and not sender.insist(message):
                stuck += 1
    return {**counted(setting, ledger), "kills": hits, "stuck": stuck}


def full(setting: Setting, sizes: Sizes, parent: Path) -> dict:
    """Sends while the disk becomes full, then again what was refused when there is room."""
    ledger = Ledger(itertools.count())
    with disks.small(parent, 48 << 20) as disk:
        setting.root = disk / "root"
        setting.root.mkdir()
        made(setting)
        with running(setting, [SENDER]) as adapter:
            sender = Round(adapter, ledger)
            for _ in range(5):
                sender.send(sender.message())
            filler = disk / "filler"
            fill(filler, 64 << 10)
            refused, streak = [], 0
            for _ in range(sizes.full):
                message = sender.message()
                if sender.send(message):
                    streak = 0
                    continue
                refused.append(message)
                streak += 1
                if streak == 25:
                    break
            filler.unlink()
            recovered = sender.insist(sender.message())
            again = [message for message in refused if not sender.send(message)]
            late = settle(setting, ledger)
        if again:
            with running(setting, [SENDER]) as adapter:
                sender = Round(adapter, ledger)
                again = [message for message in again if not sender.insist(message)]
        return {**counted(setting, ledger), "late": late, "refused_when_full": len(refused), "recovered": recovered, "stuck": len(again)}


def settle(setting: Setting, ledger: Ledger) -> int:
    """Gives a sender who runs half a minute to deliver what it accepted; returns how many messages were not there at once."""
    late, end = None, time.monotonic() + 30
    with running(setting, READERS) as readers:
        while True:
            missing = ledger.count(shown_by(readers, READERS))["lost"]
            late = missing if late is None else late
            if not missing or time.monotonic() > end:
                return late
            time.sleep(0.5)


def fill(filler: Path, left: int) -> None:
    """Leaves so many bytes of the disk."""
    with filler.open("wb") as file:
        state = os.statvfs(filler)
        file.write(bytes(max(0, state.f_bavail * state.f_frsize - left)))


def power(setting: Setting, sizes: Sizes, parent: Path) -> dict:
    """Cuts the power of the disk while messages are sent, several times, each time with a new store."""
    total = {"accepted": 0, "refused": 0, "lost": 0, "doubled": 0, "cuts": 0, "broken": 0, "errors": []}
    dice = random.Random(3)
    for _ in range(sizes.cuts):
        with disks.disk(parent) as disk:
            setting.root = disk.folder / "root"
            setting.root.mkdir()
            shutil.rmtree(setting.scratch, ignore_errors=True)
            setting.scratch.mkdir()
            outcome = one_cut(setting, disk, 0.3 + dice.random() * 1.5)
        total["cuts"] += 1
        for name in ("accepted", "refused", "lost", "doubled"):
            total[name] += outcome[name]
        if "error" in outcome:
            total["broken"] += 1
            total["errors"].append(outcome["error"][-300:])
    return total


def one_cut(setting: Setting, disk: disks.Disk, seconds: float) -> dict:
    """Sends for so long, cuts, starts again, sends again what had no answer, and counts."""
    made(setting)
    ledger = Ledger(itertools.count())
    adapter = Adapter(setting, [SENDER])
    told: list[tuple[float, dict, bool]] = []
    open_message: list[dict] = []
    over = threading.Event()

    def work() -> None:
        sender = Round(adapter, ledger)
        while not over.is_set():
            message = sender.message()
            open_message[:] = [message]
            try:
                sender.tell(message)
                accepted = adapter.answer(20)["ok"]
            except (AdapterError, OSError, ValueError):
                return
            told.append((time.monotonic(), message, accepted))
            open_message.clear()
            if not accepted:
                return

    try:
        adapter.start()
        warm = Round(adapter, ledger)
        if not all(warm.send(warm.message()) for _ in range(3)):
            raise AdapterError(f"{setting.program.name}: cannot send before the cut")
        disk.sync()
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        time.sleep(seconds)
        moment = time.monotonic()
        over.set()
        disk.cut()
    finally:
        adapter.kill()
    thread.join(30)
    # What was answered after the cut may be there or not; it is sent again, as all that was not accepted.
    unsure = [message for at, message, accepted in told if at >= moment or not accepted] + open_message
    for at, message, accepted in told:
        if accepted and at < moment:
            ledger.note(message["number"], message["to"], True)
    until(disk.unmount, 20)
    disk.mount()
    try:
        with running(setting, [SENDER]) as again:
            sender = Round(again, ledger)
            if not all([sender.insist(message) for message in unsure]) or not sender.insist(sender.message()):
                return {**ledger.count(shown_by_all(setting)), "error": "it sends nothing any more"}
        return counted(setting, ledger)
    except AdapterError as error:
        count = len(ledger.accepted)
        return {"accepted": count, "refused": 0, "lost": count, "doubled": 0, "error": str(error)}


def shown_by_all(setting: Setting):
    """Returns what the readers are shown."""
    with running(setting, READERS) as readers:
        return shown_by(readers, READERS)


def until(work: Callable[[], None], seconds: float) -> None:
    """Repeats what fails while a process that was killed still ends."""
    end = time.monotonic() + seconds
    while True:
        try:
            return work()
        except disks.NoDisk:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def forged(setting: Setting, _: Sizes) -> dict:
    """Puts messages in the name of somebody else into the store, and looks how they are shown."""
    victim, to = SENDER, READERS[0]
    made(setting)
    genuine = {"subject": "m000001 pay the invoice", "text": "Please pay ten coins to the printer."}
    with running(setting, [victim]) as adapter:
        adapter.ask("send", sender=victim, to=[to], key="genuine", **genuine)
    ways: dict[str, str] = {}
    with running(setting, [to]) as reader, running(setting, []) as forger:
        mark = look(reader, to, 1, victim)
        if mark is None:
            raise AdapterError(f"{setting.program.name}: the genuine message is not shown")
        for number, way in enumerate(("name", "bare", "signature", "first"), 2):
            # Somebody who has never written yet has shown no key.
            victim = READERS[1] if way == "first" else SENDER
            answer = forger.try_to("forge", way="name" if way == "first" else way, victim=victim, to=to, subject=f"m{number:06} pay the invoice",
                                   text=f"Please pay {number} thousand coins to the forger.", genuine=genuine)
            if not answer["ok"]:
                if answer.get("trace"):
                    raise AdapterError(answer["trace"])
                ways[way] = f"not possible: {answer['error']}"
                continue
            seen = look(reader, to, number, victim)
            alike = seen == mark or (way == "first" and seen is not None and KEY.sub("", seen) == KEY.sub("", mark))
            ways[way] = kept_back(reader, to, number) if seen is None else "shown as genuine" if alike else f"told apart: {seen or 'no mark'}"
    shown = sum(verdict == "shown as genuine" for verdict in ways.values())
    return {"tried": sum(not verdict.startswith("not possible") for verdict in ways.values()), "shown": shown, "ways": ways,
            "genuine": mark}


def look(reader: Adapter, me: str, number: int, victim: str) -> str | None:
    """Returns the mark with which a message of the victim is shown, or nothing if it is not shown within two seconds."""
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        for message in reader.insist("everything", me=me)["messages"]:
            if (found := TOKEN.search(message["text"])) and int(found[1]) == number and message["from"] == victim:
                return message["mark"] if "mark" in message else reader.insist("read", me=me, id=message["id"])["mark"]
        time.sleep(0.1)
    return None


def kept_back(reader: Adapter, me: str, number: int) -> str:
    """Says whether the program tells that it kept a message back; one that it did not even find proves nothing."""
    answer = reader.try_to("rejected", me=me)
    told = answer["ok"] and any(f"m{number:06}" in text for text in answer["texts"])
    return "not shown, and told to be rejected" if told else "not shown"


def away(setting: Setting, sizes: Sizes) -> dict:
    """Lets a reader come back after a day: by the clock of the program it is the next day."""
    made(setting)
    me, ledger = READERS[0], Ledger(itertools.count())
    with running(setting, [SENDER]) as adapter:
        for _ in range(sizes.away):
            number, subject = ledger.subject()
            adapter.ask("send", sender=SENDER, to=[me], subject=subject, text=BODY, key=f"key-{number}")
            ledger.note(number, [me], True)
    preload = next((path for path in PRELOAD if Path(path).exists()), None)
    if preload:
        setting.environment = {"LD_PRELOAD": preload, "FAKETIME": "+25h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    adapter = Adapter(setting, [me])
    try:
        start = time.perf_counter()
        adapter.start()
        listed = len(adapter.insist("list", me=me)["ids"])
        seconds = time.perf_counter() - start
        found = ledger.count(shown_by(adapter, [me]))
    finally:
        adapter.stop()
        adapter.kill()
        setting.environment = {}
    return {**found, "listed": listed, "seconds": seconds, "next_day": preload is not None}
