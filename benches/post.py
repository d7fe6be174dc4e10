"""Measurements of the links that carry letters, each beside the client of the engine used by itself."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import BenchError, Place, Row, command, place, wait_until
from kinds import HERE, peer_bin
from links import carrying, end

BODY = "the schema migration is done, please review the branch before it is merged. " * 6
DOMAIN = "bench.example"


@dataclass(frozen=True)
class Engine:
    """A server that runs, and how two machines reach each other by it."""

    name: str
    # What bare_post.py is told.
    bare: list[str]
    server: subprocess.Popen
    # Where the second machine's agent is written to.
    address: str
    # Both machines, from the name of an agent and its place to the folder of its mailbox.
    configure: Callable[[str, Place], Path]
    # Files of a mailbox: what has gone, what has come.
    gone: Callable[[Path], int]
    come: Callable[[Path], int]


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def serve(stack: contextlib.ExitStack, port: int, *words: str | Path,
          env: dict[str, str] | None = None) -> subprocess.Popen:
    """Runs a server until the stack ends; returns when it listens."""
    process = subprocess.Popen([peer_bin("python3"), *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env={**os.environ, **(env or {})})
    stack.callback(end, process)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listens, " ".join(map(str, words[:2])))
    return process


@contextlib.contextmanager
def stopped(process: subprocess.Popen) -> Iterator[None]:
    """Stops a process, as long as this lasts. The kernel goes on to accept connections for it."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def letters(box: Path, folder: str) -> int:
    """Letters in one of the folders of an AgentAZAll mailbox."""
    return sum(name.endswith(".txt") for day in box.glob(f"*/{folder}") for name in os.listdir(day))


def agentazall(config: Callable[[str], dict], host: str) -> Callable[[str, Place], Path]:
    """A machine with one AgentAZAll mailbox whose configuration names the engine."""
    def configure(name: str, where: Place) -> Path:
        root, address = where.root / "agz", f"{name}{host}"
        box = root / "data/mailboxes" / address
        box.mkdir(parents=True)
        file = root / "config.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps({"agent_name": address, "mailbox_dir": "./data/mailboxes", "log_file": "",
                                    **config(name)}))
        settings(where, f'[[store]]\nkind = "agentazall"\ndir = "{root}"\nlinks = true\n')
        return box

    return configure


def settings(where: Place, text: str) -> None:
    """Writes the configuration of msgfs."""
    path = where.home / ".config/msgfs/config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def relay(root: Path, stack: contextlib.ExitStack) -> Engine:
    """AgentAZAll's own relay."""
    port = free_port()
    server = serve(stack, port, "-m", "agentazall.agenttalk_server", "--host", "127.0.0.1", "--create-accounts", "0",
                   "--port", str(port), "--data-dir", root / "relay")

    def token(name: str) -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/register", json.dumps({"agent_name": name}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["api_token"]

    def config(name: str) -> dict:
        return {"transport": "agenttalk", "agenttalk": {"server": f"http://127.0.0.1:{port}", "token": token(name)}}

    return Engine("relay", [str(port), token("bare-bar"), token("bare-zed")], server, "zed.agenttalk",
                  agentazall(config, ".agenttalk"), lambda box: letters(box, "sent"), lambda box: letters(box, "inbox"))


def mail(root: Path, stack: contextlib.ExitStack) -> Engine:
    """AgentAZAll's own mail server."""
    smtp, imap, pop3 = (free_port() for _ in range(3))
    (root / "mail").mkdir()
    people = ("bar@" + DOMAIN, "zed@" + DOMAIN, "a@bare.example", "z@bare.example")
    (root / "mail/accounts.json").write_text(json.dumps({who: {"password": "password"} for who in people}))
    server = serve(stack, imap, "-m", "agentazall.email_server", "--host", "127.0.0.1", "--create-accounts", "0",
                   "--smtp-port", str(smtp), "--imap-port", str(imap), "--pop3-port", str(pop3),
                   "--data-dir", root / "mail")

    def config(name: str) -> dict:
        return {"transport": "email", "email": {
            "imap_server": "127.0.0.1", "imap_port": imap, "imap_ssl": False, "imap_folder": "INBOX",
            "smtp_server": "127.0.0.1", "smtp_port": smtp, "smtp_ssl": False, "smtp_starttls": False,
            "username": f"{name}@{DOMAIN}", "password": "password", "sync_special_folders": False}}

    return Engine("mail", [str(smtp), str(imap)], server, "zed@" + DOMAIN, agentazall(config, "@" + DOMAIN),
                  lambda box: letters(box, "sent"), lambda box: letters(box, "inbox"))


def ftp(root: Path, stack: contextlib.ExitStack) -> Engine:
    """AgentAZAll's own FTP server."""
    port = free_port()
    account = {"host": "127.0.0.1", "port": port, "user": "agentoftp", "password": "agentoftp_pass"}
    config = root / "ftp.json"
    config.write_text(json.dumps({"ftp": {**account, "root": str(root / "ftp")}}))
    server = serve(stack, port, "-m", "agentazall.ftp_server", "--port", str(port),
                   env={"AGENTAZALL_CONFIG": str(config)})
    return Engine("ftp", [str(port)], server, "zed@" + DOMAIN,
                  agentazall(lambda _: {"transport": "ftp", "ftp": account}, "@" + DOMAIN),
                  lambda box: letters(box, "sent"), lambda box: letters(box, "inbox"))


def amp(program: Path, stack: contextlib.ExitStack) -> Engine:
    """The tests' own provider: no other can be had from a registry."""
    provider = program.parent / "examples/amp_provider"
    process = subprocess.Popen([provider], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True)
    stack.callback(end, process)
    port = int(process.stdout.readline()) if process.stdout else 0

    def configure(name: str, where: Place) -> Path:
        agent = where.home / ".agent-messaging/agents" / name
        agent.mkdir(parents=True)
        (agent / "config.json").write_text(json.dumps({
            "agent": {"name": name, "tenant": "acme", "address": f"{name}@acme.aimaestro.local"},
            "provider": {"domain": "aimaestro.local"}}))
        settings(where, f'me = "{name}"\n[[store]]\nkind = "amp"\ndir = "{where.home}/.agent-messaging"\n')
        (agent / "keys").mkdir()
        private, public = agent / "keys/private.pem", agent / "keys/public.pem"
        command("openssl", "genpkey", "-algorithm", "ed25519", "-out", private)
        command("openssl", "pkey", "-in", private, "-pubout", "-out", public)
        where.run("amp", "register", DOMAIN, "--tenant", "acme", "--api-url", f"http://127.0.0.1:{port}")
        return agent / "messages"

    # A file that was found once is not read again: that would take the time of the cores that are measured.
    relayed: set[Path] = set()

    def gone(box: Path) -> int:
        relayed.update(path for path in box.glob("sent/**/*.json")
                       if path not in relayed and b"relayed_id" in path.read_bytes())
        return len(relayed)

    return Engine("amp", [str(port)], process, "zed@acme." + DOMAIN, configure, gone,
                  lambda box: sum(1 for _ in box.glob("inbox/**/*.json")))


def alone(engine: Engine, count: int) -> tuple[float, float]:
    """Seconds in which the client by itself sends and fetches this many."""
    words = [peer_bin("python3"), "-B", HERE / "bare_post.py", engine.name, engine.bare[0], str(count), *engine.bare[1:]]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"bare_post.py {engine.name}: {done.stderr}")
    sent, fetched = map(float, done.stdout.split())
    return sent, fetched


def until(count: int, now: Callable[[], int], what: str) -> float:
    """Waits without keeping the others from running; when there were this many."""
    deadline = time.monotonic() + 900
    while now() < count:
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: {now()} of {count} in 15 minutes")
        time.sleep(0.05)
    return time.perf_counter()


def measured(program: Path, parent: Path, engine: Engine, count: int) -> Iterator[Row]:
    """Letters that wait for the engine until it has them, then for another machine that comes later."""
    with contextlib.ExitStack() as stack:
        here, there = (stack.enter_context(place(program, parent)) for _ in range(2))
        for where, name in ((here, "bar"), (there, "zed")):
            where.env["MSGFS_ME"] = name
        box, other = engine.configure("bar", here), engine.configure("zed", there)
        with here.mounted():
            with stopped(engine.server):
                for n in range(count):
                    (here.mountpoint / "outbox" / engine.address).write_text(f"Subject: letter {n}\n\n{BODY}{n}\n")
            start = time.perf_counter()
            sent = until(count, lambda: engine.gone(box), f"{engine.name}: what has gone") - start
        start = time.perf_counter()
        with carrying(there):
            fetched = until(count, lambda: engine.come(other), f"{engine.name}: what has come") - start
        shown = there.run("ls", "inbox").stdout.count(b"\n")
        if engine.come(other) != count or shown != count:
            raise BenchError(f"{engine.name}: sent {count} letters, {engine.come(other)} came, {shown} are shown")
    bare_sent, bare_fetched = alone(engine, count)
    for what, ours, peer in (("waiting, until the server has them", sent, bare_sent),
                             ("waiting, to a machine that starts", fetched, bare_fetched)):
        yield Row(f"`{engine.name}`: {count} letters, {what}", count / ours, "/s", "Python's client alone",
                  count / peer, more_is_better=True)


def post(program: Path, parent: Path, count: int) -> Iterator[Row]:
    """Each engine."""
    for start in (relay, mail, ftp):
        with place(program, parent) as where, contextlib.ExitStack() as stack:
            yield from measured(program, parent, start(where.root, stack), count)
    with contextlib.ExitStack() as stack:
        yield from measured(program, parent, amp(program, stack), count)
