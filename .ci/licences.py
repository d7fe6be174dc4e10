"""Checks the licence and the origin of every dependency against deny.toml.

It does what `cargo deny check licenses sources` does for our purpose, without the minutes it takes
to build cargo-deny: each crate in the dependency graph must come from crates.io and carry a licence
expression that can be satisfied with the licences in the allow list.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


class ExpressionError(ValueError):
    """The text is not an SPDX licence expression."""


def satisfied(expression: str, allowed: set[str]) -> bool:
    """Whether the allowed licences suffice for an SPDX expression (AND binds closer than OR).

    The old spelling of crates.io, `MIT/Apache-2.0`, means OR.
    """
    tokens = re.findall(r"[()]|[A-Za-z0-9.+-]+", expression.replace("/", " OR "))
    position = 0

    def peek() -> str | None:
        return tokens[position] if position < len(tokens) else None

    def take() -> str:
        nonlocal position
        token = peek()
        if token is None:
            raise ExpressionError(f"ends too early: {expression!r}")
        position += 1
        return token

    def one() -> bool:
        token = take()
        if token == "(":
            value = any_of()
            if take() != ")":
                raise ExpressionError(f"missing ')': {expression!r}")
            return value
        if token in {")", "AND", "OR", "WITH"}:
            raise ExpressionError(f"unexpected {token!r}: {expression!r}")
        if peek() == "WITH":
            take()
            token = f"{token} WITH {take()}"
        return token in allowed

    def all_of() -> bool:
        value = one()
        while peek() == "AND":
            take()
            value = one() and value
        return value

    def any_of() -> bool:
        value = all_of()
        while peek() == "OR":
            take()
            value = all_of() or value
        return value

    value = any_of()
    if peek() is not None:
        raise ExpressionError(f"unexpected {peek()!r}: {expression!r}")
    return value


def self_test() -> None:
    """The expressions that must and must not pass; a checker that accepts all is worth nothing."""
    allowed = {"MIT", "ISC", "Apache-2.0 WITH LLVM-exception"}
    for good in ["MIT", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "(GPL-3.0 OR MIT) AND ISC",
                 "GPL-3.0 AND X OR MIT", "Apache-2.0 WITH LLVM-exception"]:
        assert satisfied(good, allowed), good
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "MIT AND (X OR Y)",
                "MIT WITH LLVM-exception"]:
        assert not satisfied(bad, allowed), bad
    for broken in ["", "MIT AND", "(MIT", "MIT ISC"]:
        try:
            satisfied(broken, allowed)
        except ExpressionError:
            continue
        raise AssertionError(broken)


def main() -> int:
    self_test()
    root = Path(__file__).resolve().parent.parent
    allowed = set(tomllib.loads((root / "deny.toml").read_text())["licenses"]["allow"])
    output = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--locked",
         "--filter-platform", "x86_64-unknown-linux-gnu"],
        cwd=root, check=True, stdout=subprocess.PIPE).stdout
    metadata = json.loads(output)
    members = set(metadata["workspace_members"])
    wrong = []
    for package in metadata["packages"]:
        name = f"{package['name']} {package['version']}"
        if package["id"] not in members and package["source"] != CRATES_IO:
            wrong.append(f"{name}: comes from {package['source']}, not from crates.io")
        licence = package["license"]
        try:
            if not licence:
                wrong.append(f"{name}: states no licence")
            elif not satisfied(licence, allowed):
                wrong.append(f"{name}: {licence} is not in the allow list of deny.toml")
        except ExpressionError as error:
            wrong.append(f"{name}: {error}")
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(metadata['packages'])} packages, {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
