#!/usr/bin/env python3
"""Drives the real agent programs with mail, in terminals, with a scripted model on loopback.

    tests/harness/run.py --msgfs target/debug/msgfs --agents target/agents [--program NAME]… [--newest] [--rounds N]

The programs come from the npm registry, in pinned versions or the newest ones. They run in a network namespace that
has nothing but loopback. Each case prints one line. It ends with 1 if one failed.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

sys.dont_write_bytecode = True

import programs  # noqa: E402
import sessions  # noqa: E402
from bed import Bed, raise_loopback  # noqa: E402
from model import Model  # noqa: E402
from terminal import descendants, end_process  # noqa: E402


def install(folder, name, newest):
    """Installs a program with npm, and returns its version."""
    package, version, _ = programs.PACKAGES[name]
    place = os.path.join(folder, name)
    manifest = os.path.join(place, "node_modules", package, "package.json")

    def installed():
        try:
            with open(manifest, encoding="utf-8") as file:
                return json.load(file)["version"]
        except OSError:
            return None

    if newest or installed() != version:
        wanted = f"{package}@{'latest' if newest else version}"
        print(f"installing from registry.npmjs.org: {wanted}", flush=True)
        os.makedirs(place, exist_ok=True)
        # A program may ask for a newer node than the one that only starts it.
        words = ["npm", "install", "--prefix", place, "--force", "--no-audit", "--no-fund", "--no-save"]
        subprocess.run([*words, "--loglevel=error", wanted], check=True)
    return installed()


class Cases:
    """The cases of one program, in one session as far as they can be."""

    def __init__(self, bed, name):
        self.bed, self.name = bed, name
        self.agent = bed.agent("alice", name)
        self.number = 0

    def mail(self):
        """Lets bob write a question. Returns its word, and the time after it was sent."""
        self.number += 1
        word = f"q{self.number}"
        return word, self.bed.send("bob", "alice", f"QUESTION {word}")

    def is_answered_once(self, word, since):
        """Waits until the agent has answered, and checks that it heard of the mail just once."""
        self.agent.wait_until_idle()
        bells = [bell for request in self.agent.requests(since) for bell in request.bells()]
        assert len(bells) == 1, f"it heard {len(bells)} bells: {bells}"
        assert "from bob" in bells[0] and "QUESTION" not in bells[0], bells
        said = self.bed.read("bob")
        assert said.count(f"ANSWER {word}\n") == 1, f"bob got {said!r}"
        left = self.agent.msgfs("ls", "inbox")
        assert left == "", f"unread is left: {left}"

    def case_uninstall_gives_the_bytes_back(self):
        before = self.agent.settings()
        self.agent.msgfs("hook", "install", "--for", self.name)
        assert self.agent.settings() != before
        self.agent.msgfs("hook", "uninstall", "--for", self.name)
        assert self.agent.settings() == before, "the files differ"
        self.agent.msgfs("hook", "install", "--for", self.name)

    def case_told_at_the_start(self):
        word, since = self.mail()
        self.agent.start()
        if "start" in self.agent.program.told:
            request = self.agent.prompt("good morning")
            assert request.bells() or any(r.bells() for r in self.agent.requests(since)), "the first request has no bell"
        else:
            self.agent.prompt("good morning")
            self.agent.wait_for_bell(since, 20)
        self.is_answered_once(word, since)

    def case_silent_without_mail(self):
        self.agent.wait_until_idle()
        since = time.monotonic()
        self.agent.prompt("and now")
        self.agent.wait_until_idle()
        assert not any(request.bells() for request in self.agent.requests(since)), "a bell without mail"

    def case_told_at_a_prompt(self):
        if "prompt" not in self.agent.program.told:
            return "not at a prompt"
        self.agent.wait_until_idle()
        # The prompt is typed before the mail comes and sent at once, so that no waiter rings first.
        self.agent.terminal.tmux("send-keys", "-l", "now look")
        time.sleep(0.5)
        word, since = self.mail()
        self.agent.terminal.keys("Enter")
        request = self.agent.wait_for_request(lambda r: "now look" in r.text, since, 30, "the prompt")
        assert request.bells(), "the request with the prompt has no bell"
        self.is_answered_once(word, since)

    def case_told_at_the_end_of_a_turn(self):
        if "stop" not in self.agent.program.told and not self.agent.program.wakes:
            return "not at the end of a turn"
        with self.agent.held_turn("a long turn"):
            word, since = self.mail()
        self.agent.wait_for_bell(since, 30)
        self.is_answered_once(word, since)

    def case_woken_when_idle(self):
        if not self.agent.program.wakes:
            return "it cannot be woken"
        took = []
        for turn in range(3):
            self.agent.wait_until_idle()
            self.agent.prompt(f"turn {turn} is over")
            self.agent.wait_until_idle()
            word, since = self.mail()
            took.append(self.agent.wait_for_bell(since, 30).time - since)
            self.is_answered_once(word, since)
        return f"median {statistics.median(took):.2f} s from close to the model's request"

    def case_a_woken_session_asks_for_approval(self):
        if not self.agent.program.approval:
            return "not tested"
        carol = self.bed.agent("carol", self.name, asks=True)
        carol.msgfs("hook", "install", "--for", self.name)
        carol.start()
        carol.prompt("good morning")
        carol.wait_until_idle()
        carol.wait_for_bell(self.bed.send("bob", "carol", "QUESTION approval"))
        carol.terminal.wait_for(self.agent.program.approval[0])
        time.sleep(3)
        assert carol.msgfs("ls", "inbox") != "", "the command ran before it was approved"
        carol.terminal.keys("Enter")
        end = time.monotonic() + 20
        while carol.msgfs("ls", "inbox") != "" and time.monotonic() < end:
            time.sleep(0.5)
        assert carol.msgfs("ls", "inbox") == "", "it did not run after it was approved"
        carol.stop()

    def case_a_session_without_its_terminal_sleeps_on(self):
        if not self.agent.program.stays_after_quit:
            return "it ends with its terminal"
        dave = self.bed.agent("dave", self.name)
        dave.msgfs("hook", "install", "--for", self.name)
        dave.start()
        dave.prompt("good morning")
        dave.wait_until_idle()
        left = descendants(dave.terminal.pid)
        dave.type("/quit")
        end = time.monotonic() + 20
        while dave.terminal.is_running() and time.monotonic() < end:
            time.sleep(0.2)
        assert not dave.terminal.is_running(), "it did not quit"
        time.sleep(2)
        since = self.bed.send("bob", "dave", "QUESTION late")
        time.sleep(6)
        heard = dave.requests(since)
        for pid in left:
            end_process(pid, signal.SIGTERM)
        dave.stop()
        assert not heard, "a turn began that nobody sees"

    def case_goes_on_when_msgfs_is_gone(self):
        with self.bed.program_replaced(None):
            self.agent.prompt("msgfs is gone")
            self.agent.wait_until_idle()
        assert self.agent.terminal.is_running()

    def case_goes_on_when_msgfs_hangs(self):
        with self.bed.program_replaced(f"#!/bin/sh\nexec sleep {self.agent.program.hang}\n"):
            began = time.monotonic()
            took = self.agent.prompt("msgfs hangs").time - began
            self.agent.wait_until_idle()
        assert self.agent.terminal.is_running()
        return f"the prompt took {took:.1f} s"

    def case_silent_after_uninstall(self):
        self.agent.stop()
        self.agent.msgfs("hook", "uninstall", "--for", self.name)
        _, since = self.mail()
        self.agent.start()
        self.agent.prompt("good evening")
        self.agent.wait_until_idle()
        assert not any(request.bells() for request in self.agent.requests(since)), "a bell after uninstall"

    def case_transcripts_are_threads(self):
        if self.name not in sessions.SESSIONS:
            return "its transcripts are not read"
        return sessions.check(self.bed.agent("erin", self.name))

    def case_transcripts_of_terminals_are_threads(self):
        if self.name not in sessions.SESSIONS:
            return "its transcripts are not read"
        return f"{sessions.check_terminal(self.agent)} sessions"

    def run(self, report):
        for case in [
            self.case_transcripts_are_threads,
            self.case_uninstall_gives_the_bytes_back,
            self.case_told_at_the_start,
            self.case_silent_without_mail,
            self.case_told_at_a_prompt,
            self.case_told_at_the_end_of_a_turn,
            self.case_woken_when_idle,
            self.case_a_woken_session_asks_for_approval,
            self.case_a_session_without_its_terminal_sleeps_on,
            self.case_goes_on_when_msgfs_is_gone,
            self.case_goes_on_when_msgfs_hangs,
            self.case_silent_after_uninstall,
            self.case_transcripts_of_terminals_are_threads,
        ]:
            what = case.__name__.removeprefix("case_").replace("_", " ")
            report.run(f"{self.name}: {what}", case, self.agent)


class Pairs:
    """Rounds of question and answer between the agents of two programs."""

    def __init__(self, bed, rounds, report):
        self.bed, self.rounds, self.report = bed, rounds, report
        self.agents = {}
        self.number = 0

    def agent(self, program, second=False):
        """Returns the running agent of a program."""
        name = program + ("-too" if second else "")
        if name not in self.agents:
            agent = self.bed.agent(name, program)
            agent.msgfs("hook", "install", "--for", program)
            agent.start()
            agent.prompt("good morning")
            agent.wait_until_idle()
            self.agents[name] = agent
        return self.agents[name]

    def run(self, first, second):
        self.report.run(f"{first} asks {second}", lambda: self.ask(first, second), None)

    def ask(self, first, second):
        asker, answerer = self.agent(first), self.agent(second, first == second)
        took = []
        for _ in range(self.rounds):
            took += self.round(asker, answerer)
        told = f"{self.rounds} rounds, 0 lost, 0 doubled"
        return told + (f", median from close to the bell {statistics.median(took):.2f} s" if took else "")

    def round(self, asker, answerer):
        """Runs one round. Returns the times from the end of a send to the bell, where a session was woken."""
        self.number += 1
        word = f"w{self.number}"
        # A person's prompt begins the count of rings anew.
        for agent in (answerer, asker):
            agent.wait_until_idle()
        answerer.prompt(f"round {self.number}")
        answerer.wait_until_idle()
        since = time.monotonic()
        asker.prompt(f"SEND {answerer.name} {word}")
        took = [self.hear(answerer, asker, f"QUESTION {word}", since)]
        took.append(self.hear(asker, answerer, f"ANSWER {word}", since))
        for agent in (answerer, asker):
            agent.wait_until_idle()
        for agent, text in ((answerer, f"QUESTION {word}"), (asker, f"ANSWER {word}")):
            seen = agent.count_shown(text, since)
            assert seen == 1, f"{agent.name} was shown {text!r} {seen} times"
        return [one for one in took if one is not None]

    def hear(self, hearer, writer, text, since):
        """Waits until the text was shown to the hearer. A hearer that cannot be woken gets a prompt. Returns how long a
        woken one took from the end of the send to the bell."""
        sent = writer.wait_for_sent(text, since)
        if not hearer.program.wakes:
            writer.wait_until_idle(1)
            if not hearer.count_shown(text, since):
                hearer.prompt(f"look for mail about {text.split()[1]}", mail=text)
            hearer.wait_for_shown(text, since)
            return None
        hearer.wait_for_shown(text, since)
        rung = [r.time for r in hearer.requests(since) if r.bells() and r.time >= sent - 0.2]
        return min(rung) - sent if rung else None


class Report:
    """The results, one line each."""

    def __init__(self):
        self.failed = []

    def run(self, what, case, agent):
        began = time.monotonic()
        try:
            remark = case()
            print(f"ok      {what}{f': {remark}' if remark else ''} ({time.monotonic() - began:.0f} s)", flush=True)
        except Exception as error:  # one case that fails must not end the others
            self.failed.append(what)
            print(f"FAILED  {what}: {error}", flush=True)
            if not isinstance(error, (AssertionError, TimeoutError)):
                traceback.print_exc()
            if agent and agent.terminal:
                print(agent.terminal.screen().strip(), flush=True)


def enter_namespace():
    """Runs this program again where there is no network but loopback."""
    words = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    os.execvpe(words[0], [*words, sys.executable, *sys.argv], {**os.environ, "MSGFS_HARNESS": "inside"})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--msgfs", required=True, help="the program to test")
    parser.add_argument("--agents", required=True, help="the folder for the agent programs")
    parser.add_argument("--program", action="append", choices=programs.ALL, help="only this one; may be repeated")
    parser.add_argument("--newest", action="store_true", help="the newest versions instead of the pinned ones")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each pair; 0 for none")
    parser.add_argument("--no-cases", action="store_true", help="only the pairs")
    options = parser.parse_args()
    names = options.program or list(programs.ALL)
    if os.environ.get("MSGFS_HARNESS") != "inside":
        for name in names:
            print(f"{name} {install(options.agents, name, options.newest)}", flush=True)
        enter_namespace()
    raise_loopback()
    # The programs are ended, whatever ends this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Codex wants no home below /tmp, and msgfs installs no hooks for a program below target/.
    folder = tempfile.mkdtemp(prefix="msgfs-harness.", dir="/var/tmp")
    report = Report()
    model = Model(os.path.join(folder, "model.log"))
    places = (os.path.abspath(options.msgfs), os.path.abspath(options.agents), model)
    for name in [] if options.no_cases else names:
        bed = Bed(os.path.join(folder, name), *places)
        try:
            Cases(bed, name).run(report)
        finally:
            bed.close()
            model.agents.clear()
    if options.rounds:
        bed = Bed(os.path.join(folder, "pairs"), *places)
        pairs = Pairs(bed, options.rounds, report)
        try:
            for first in names:
                for second in names:
                    pairs.run(first, second)
        finally:
            bed.close()
    if report.failed:
        print(f"{len(report.failed)} failed; screens and requests are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
