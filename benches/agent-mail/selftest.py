"""Tests that the benchmark finds what a program loses, doubles and believes, and finds nothing in a sound one."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import damage
import programs
import report
import speed
from client import Setting
from sizes import Sizes

SIZES = replace(Sizes.quick(), arrivals=2, kills=6)


def outcome(words: tuple[str, ...], parent: Path) -> dict:
    """Runs the scenarios that need neither root nor a package."""
    program = programs.Program("lossy", "lossy", "", words)
    result: dict = {"title": " ".join(words)}
    for name, work in (("workload", speed.workload), ("kills", damage.kills), ("forged", damage.forged), ("away", damage.away)):
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            root, scratch = Path(folder) / "root", Path(folder) / "scratch"
            root.mkdir()
            scratch.mkdir()
            result[name] = work(Setting(program, Path("/nowhere"), root, scratch, []), SIZES)
    return result


def run(parent: Path) -> int:
    """Says what is wrong; 0 if nothing is."""
    wrong = []
    with tempfile.TemporaryDirectory(prefix="agent-mail-", dir=parent) as folder:
        lossy, sound = outcome(("lossy.py",), Path(folder)), outcome(("lossy.py", "sound"), Path(folder))
    for name in ("workload", "kills", "away"):
        if not lossy[name]["lost"] or not lossy[name]["doubled"]:
            wrong.append(f"{name}: a program that loses and doubles is not found out: {lossy[name]}")
        if sound[name]["lost"] or sound[name]["doubled"] or not sound[name]["accepted"]:
            wrong.append(f"{name}: a sound program is accused: {sound[name]}")
    if lossy["forged"]["shown"] != lossy["forged"]["tried"]:
        wrong.append(f"forged: {lossy['forged']}")
    if sound["forged"]["shown"] or sound["forged"]["tried"]:
        wrong.append(f"forged: {sound['forged']}")
    table = report.tables({"programs": {"lossy": lossy, "sound": sound}, "machine": {}})
    if f"**{lossy['workload']['lost']}**" not in table:
        wrong.append(f"the table does not show the loss:\n{table}")
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{9 - len(wrong)} passed, {len(wrong)} failed")
    return 1 if wrong else 0
