#!/usr/bin/env python3
"""msgfs over one of its kinds of store: `msgfs.py KIND` mounts, `msgfs.py KIND commands` does not."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True

import forgery  # noqa: E402
from adapter import Refused, Transcript, command, serve  # noqa: E402

PROGRAM = os.environ["AGENT_MAIL_MSGFS"]
HOST = {"agentazall": "@localhost", "maildir": "@localhost", "amp": "@acme.aimaestro.local"}


class Store:
    """A store of one kind with a mailbox for each agent, made by hand as the page of the kind shows."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder

    def make(self, agents: list[str]) -> None:
        """Makes what an agent needs before it can write, for those who have it not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in agents:
            getattr(self, f"_make_{self.kind}")(name)
        if self.kind == "amq":
            meta = self.folder / "meta/config.json"
            meta.parent.mkdir(exist_ok=True)
            if not meta.exists():
                meta.write_text(json.dumps({"version": 1, "agents": agents}))

    def _make_samp(self, name: str) -> None:
        """Makes nothing: the folder is enough."""

    def _make_agentazall(self, name: str) -> None:
        config = self.folder / name / "config.json"
        if config.exists():
            return
        config.parent.mkdir()
        box = self.folder / "mailboxes" / f"{name}@localhost"
        box.mkdir(parents=True)
        config.write_text(json.dumps({"agent_name": f"{name}@localhost", "mailbox_dir": str(self.folder / "mailboxes"),
                                      "transport": "none", "log_file": ""}))
        command([Path(os.environ["AGENT_MAIL_VENV"]) / "bin/agentazall", "crypto-identity"], env={"AGENTAZALL_CONFIG": str(config)})
        (box / ".identity_key").chmod(0o600)

    def _make_amp(self, name: str) -> None:
        agent = self.folder / "agents" / name
        if agent.exists():
            return
        for part in ("keys", "registrations", "messages/inbox", "messages/sent", "attachments"):
            (agent / part).mkdir(parents=True)
        command(["openssl", "genpkey", "-algorithm", "ed25519", "-out", agent / "keys/private.pem"])
        command(["openssl", "pkey", "-in", agent / "keys/private.pem", "-pubout", "-out", agent / "keys/public.pem"])
        (agent / "keys/private.pem").chmod(0o600)
        (agent / "config.json").write_text(json.dumps({
            "version": "1.1", "agent": {"name": name, "tenant": "acme", "address": name + HOST["amp"]},
            "provider": {"domain": "aimaestro.local"}}))

    def _make_amq(self, name: str) -> None:
        agent = self.folder / "agents" / name
        for part in ("inbox/tmp", "inbox/new", "inbox/cur", "outbox/sent", "receipts", "dlq/tmp", "dlq/new", "dlq/cur"):
            (agent / part).mkdir(parents=True, exist_ok=True)

    def _make_maildir(self, name: str) -> None:
        for folder in ("", "Sent"):
            for part in ("tmp", "new", "cur"):
                (self.folder / name / folder / part).mkdir(parents=True, exist_ok=True)

    def config(self, me: str, agents: list[str]) -> str:
        """Returns the configuration of an agent."""
        folder = self.folder / me if self.kind in ("agentazall", "maildir") else self.folder
        text = f'me = "{me}"\nunknown_recipient = "accept"\n[[store]]\nkind = "{self.kind}"\ndir = "{folder}"\n'
        if self.kind == "maildir":
            local = "".join(f'"{name}@localhost" = "{self.folder / name}"\n' for name in agents)
            text += f'me = ["{me}@localhost"]\nsent = "Sent"\n[store.local]\n{local}'
        return text


class Msgfs:
    """Each agent has a mount of its own, or none has one."""

    def __init__(self, kind: str, mounting: bool) -> None:
        self.kind, self.mounting = kind, mounting
        self.host = HOST.get(kind, "")

    def version(self) -> dict:
        return {"program": command([PROGRAM, "--version"]).splitlines()[0]}

    def start(self, root: str, scratch: str, agents: list[str], mine: list[str], **_) -> dict:
        self.root, self.scratch, self.agents = Path(root), Path(scratch), agents
        self.home = self.root / "home"
        self.store = Store(self.kind, self.root / "store")
        self.store.make(agents)
        self._configure(self.home, self.store, agents)
        self.processes: dict[str, int] = {}
        if self.mounting:
            for name in mine:
                self._mount(name)
        return {"way": "mount" if self.mounting else "command",
                "processes": self.processes, "groups": True, "keys": True}

    def _configure(self, home: Path, store: Store, names: list[str]) -> None:
        folder = home / "config"
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = folder / f"{name}.toml"
            if not path.exists():
                path.write_text(store.config(name, self.agents))

    def _environment(self, home: Path) -> dict[str, str]:
        run = self.scratch / "run"
        run.mkdir(mode=0o700, exist_ok=True)
        return {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "XDG_CACHE_HOME": str(home / "cache"),
                "XDG_CONFIG_HOME": str(home / "none"), "XDG_RUNTIME_DIR": str(run)}

    def _run(self, me: str, *words: str, text: str | None = None, home: Path | None = None) -> str:
        home = home or self.home
        return command([PROGRAM, "--me", me, "--config", home / f"config/{me}.toml", *words], text, self._environment(home))

    def _at(self, me: str) -> Path:
        return self.scratch / "mnt" / me

    def _mount(self, me: str) -> None:
        self._at(me).mkdir(parents=True, exist_ok=True)
        self._run(me, "mount", str(self._at(me)))
        self.processes[me] = int(json.loads((self.home / "state/msgfs" / me / "lock").read_text())["pid"])

    def restart(self, me: str) -> dict:
        """Mounts again after the mount's process was killed."""
        if self.mounting:
            subprocess.run(["fusermount3", "-uz", self._at(me)], capture_output=True, check=False)
            self._mount(me)
        return {"processes": self.processes}

    def send(self, sender: str, to: list[str], subject: str, text: str, key: str, answers: str | None = None) -> None:
        head = f"Subject: {subject}\nIdempotency-Key: {key}\n"
        if not answers:
            head = f"To: {', '.join(name + self.host for name in to)}\n{head}"
        place = f"inbox/{answers.removesuffix('.txt')}.reply" if answers else f"outbox/{key}"
        if not self.mounting:
            self._run(sender, "write", place, text=f"{head}\n{text}\n")
            return
        file = os.open(self._at(sender) / place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(file, f"{head}\n{text}\n".encode())
        finally:
            os.close(file)

    def _names(self, me: str, folder: str) -> list[str]:
        names = os.listdir(self._at(me) / folder) if self.mounting else self._run(me, "ls", folder).split()
        return sorted(name for name in names if name.endswith(".txt"))

    def list(self, me: str) -> dict:
        return {"ids": self._names(me, "inbox")}

    def _text(self, me: str, path: str) -> str:
        return (self._at(me) / path).read_text() if self.mounting else self._run(me, "cat", path)

    def _shown(self, written: str) -> dict:
        head, _, body = written.partition("\n\n")
        header = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
        return {"from": header["From"].removesuffix(self.host), "text": f"{header.get('Subject', '')}\n{body}",
                "mark": f"Signature: {header['Signature']}"}

    def read(self, me: str, id: str) -> dict:
        return self._shown(self._text(me, f"inbox/{id}"))

    def everything(self, me: str) -> dict:
        found = []
        if self.mounting:
            for path in sorted(self._at(me).glob("archive/*/*.txt")):
                found.append({"id": path.name, **self._shown(path.read_text())})
        else:
            for day in self._run(me, "ls", "archive").split():
                for name in self._names(me, f"archive/{day}"):
                    found.append({"id": name, **self._shown(self._text(me, f"archive/{day}/{name}"))})
        return {"messages": found}

    def wait(self, me: str, subject: str, seconds: float) -> dict:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.mounting:
                if f"\nSubject: {subject}\n" in (self._at(me) / ".next").read_text():
                    return {"polled": False}
            elif any(f"\nSubject: {subject}\n" in self._text(me, f"inbox/{name}") for name in self._run(me, "wait").split()):
                return {"polled": False}
        raise Refused("it did not come")

    def search(self, me: str, text: str) -> dict:
        return {"found": len(self._names(me, f'search/"{text}"'))}

    def forge(self, way: str, victim: str, to: str, subject: str, text: str, genuine: dict[str, str]) -> None:
        if way == "bare":
            return forgery.bare(self.kind, self.store.folder, victim, to, subject, text)
        if way == "signature":
            return forgery.changed(self.kind, self.store.folder, victim, to, subject, text, genuine)
        home, own = self.root / "forger/home", Store(self.kind, self.root / "forger/store")
        own.make([victim, to])
        self.agents = [victim, to]
        self._configure(home, own, self.agents)
        self._run(victim, "write", "outbox/forged", text=f"To: {to}{self.host}\nSubject: {subject}\n\n{text}\n", home=home)
        return forgery.carry(self.kind, own.folder, self.store.folder, victim, to, subject)

    def rejected(self, me: str) -> dict:
        """Tells the reasons of what the program kept back."""
        names = os.listdir(self._at(me) / "rejected") if self.mounting else self._run(me, "ls", "rejected").split()
        return {"texts": [self._text(me, f"rejected/{name}") for name in names]}

    def session(self, me: str) -> dict:
        home = self.scratch / "agent"
        home.mkdir(exist_ok=True)
        environment = {"PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}"}
        if self.mounting:
            os.symlink(self._at(me), home / "mail")
            shell = Transcript(home, environment)
            names = shell.run("ls ~/mail/inbox").split()
            said = [shell.run(f"cat ~/mail/inbox/{name}") for name in names[:3]]
            shell.run(f"echo 'Done: all tests pass.' > ~/mail/inbox/{self._short(said[0])}.reply")
        else:
            shell = Transcript(home, {**environment, **self._environment(self.home), "MSGFS_ME": me})
            (self.home / "none/msgfs").mkdir(parents=True, exist_ok=True)
            (self.home / "none/msgfs/config.toml").write_text((self.home / f"config/{me}.toml").read_text())
            names = shell.run("msgfs ls inbox").split()
            said = [shell.run(f"msgfs cat inbox/{name}") for name in names[:3]]
            shell.run(f"msgfs reply {self._short(said[0])} 'Done: all tests pass.'")
        return {"steps": shell.steps}

    @staticmethod
    def _short(said: str) -> str:
        """Returns the first eight characters of the id; a long id has a name of its own, so its whole id is used."""
        ident = re.search(r"^Message-ID: <(.*)@", said, re.MULTILINE)[1]
        return ident[:8] if re.fullmatch(r"[0-9a-f]{8,}", ident) else ident

    def stop(self) -> None:
        for name in self.processes:
            subprocess.run([PROGRAM, "umount", self._at(name)], env={**os.environ, **self._environment(self.home)},
                           stdin=subprocess.DEVNULL, capture_output=True, check=False)


if __name__ == "__main__":
    serve(Msgfs(sys.argv[1], "commands" not in sys.argv[2:]))
