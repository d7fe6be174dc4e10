#!/usr/bin/env python3
"""Prints how large and how plain the code of src/ is. Fails only if two types share a name.

    .ci/house.py [ROOT] [--shared]

--shared lists the shared names with their places.
"""

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

# Every command has its `Args`, and every module may have its `Error`.
MAY_BE_SHARED = {"Args", "Error"}
# Stands in place of search/table.rs where msgfs is built without it.
STAND_INS = {"search/no_table.rs"}
# Rooms that know formats, links, coding agents or the command line. The others are the core.
OUTSIDE_CORE = {"cli", "hook", "link", "mime", "main.rs"}
# Folders of src/store that are no format.
NO_FORMATS = {"atomic_file", "engine", "testing", "text"}

TYPE = re.compile(r"^(?:pub(?:\([^)]*\))? )?(?:unsafe )?(?:struct|enum|union|trait|type) ([A-Z]\w*)")
INNER_TYPE = re.compile(r"^\s+(?:pub(?:\([^)]*\))? )?(?:struct|enum|union) ([A-Z]\w*)")
IMPL = re.compile(r"^impl(?:<.*?>)? (?:\w+::)*([A-Z]\w*)(?:<[^{]*>)?(?: where .*)? ?\{?$")
METHOD = re.compile(r"^    (?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?fn \w+")
COMMENT = re.compile(r"^\s*//[/!]? ?(.*)$")
SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`\[])")
INVERTED = re.compile(r"^(?:What|Who|Whose|Whom|Whether|How|Where)\b")


def is_test(path: Path) -> bool:
    """Returns true for a file that only tests use."""
    names = [*path.parts[:-1], path.stem]
    return any(name in {"tests", "testing", "hostile"} or name.endswith("_tests") for name in names)


def product(text: str) -> list[str]:
    """Returns the lines without modules and items that only tests have."""
    kept, lines = [], iter(text.splitlines())
    for line in lines:
        if not line.strip().startswith("#[cfg(test)]"):
            kept.append(line)
            continue
        indent = line[:len(line) - len(line.lstrip())]
        for line in lines:
            if line == indent + "}" or (line.rstrip().endswith((";", ",")) and not line.startswith(indent + " ")):
                break
    return kept


def room_of(path: Path) -> str:
    """Returns the room of a file: its folder below src/, and for formats the format."""
    first = path.parts[0]
    if first == "store" and len(path.parts) > 2 and path.parts[1] not in NO_FORMATS:
        return f"store/{path.parts[1]}"
    return first.removesuffix(".rs") if first not in {"main.rs", "lib.rs"} else first


class House:
    """The figures of one checkout."""

    def __init__(self, source: Path) -> None:
        self.rooms: Counter[str] = Counter()
        self.files: Counter[str] = Counter()
        self.types: dict[str, list[str]] = defaultdict(list)
        self.methods: Counter[str] = Counter()
        self.homes: dict[str, set[str]] = defaultdict(set)
        self.sentences = self.inverted = 0
        for path in sorted(source.rglob("*.rs")):
            below = path.relative_to(source)
            if not is_test(below) and str(below) not in STAND_INS:
                self.read(below, product(path.read_text(encoding="utf-8")))

    def read(self, path: Path, lines: list[str]) -> None:
        """Takes in one file."""
        owner, paragraph = None, []
        for number, line in enumerate([*lines, ""], 1):
            comment = COMMENT.match(line)
            if comment and comment[1]:
                paragraph.append(comment[1])
                continue
            self.take_sentences(paragraph)
            paragraph = []
            if comment or not line.strip():
                continue
            self.rooms[room_of(path)] += 1
            self.files[str(path)] += 1
            if found := TYPE.match(line) or INNER_TYPE.match(line):
                self.types[found[1]].append(f"{path}:{number}")
            if found := IMPL.match(line):
                owner = found[1]
            elif line == "}":
                owner = None
            elif owner and METHOD.match(line):
                self.methods[owner] += 1
                self.homes[owner].add(str(path))

    def take_sentences(self, paragraph: list[str]) -> None:
        """Counts the sentences of a comment."""
        for sentence in SENTENCE.split(" ".join(paragraph)):
            if sentence.strip():
                self.sentences += 1
                self.inverted += bool(INVERTED.match(sentence))

    def shared(self) -> dict[str, list[str]]:
        """Returns the names that several types have, with their places."""
        return {name: places for name, places in sorted(self.types.items())
                if len(places) > 1 and name not in MAY_BE_SHARED}

    def core(self) -> int:
        """Returns the lines of the rooms that know no format, link, coding agent or command."""
        return sum(lines for room, lines in self.rooms.items()
                   if room not in OUTSIDE_CORE and not room.startswith("store/"))


def show(house: House) -> None:
    """Prints the figures."""
    print("lines of code without tests, comments and blanks:")
    for room, lines in house.rooms.most_common():
        print(f"{lines:8,}  {room}")
    print(f"{house.core():8,}  the core\n{house.rooms.total():8,}  all")
    for title, counts in (("largest types by methods", house.methods), ("longest files", house.files)):
        print(f"{title}:")
        for name, count in counts.most_common(10):
            places = f" in {len(house.homes[name])} files" if name in house.homes else ""
            print(f"{count:8,}  {name}{places}")
    share = 100 * house.inverted / max(house.sentences, 1)
    print(f"sentences of comments that begin with What, Who, Whether, How or Where: {house.inverted:,} of "
          f"{house.sentences:,}, {share:.1f} %")
    count = sum(len(places) for places in house.types.values())
    print(f"types that share their name: {sum(map(len, house.shared().values()))} of {count}")


def main() -> int:
    """Prints everything; returns 1 if a name is shared."""
    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    house = House(Path(names[0] if names else ".") / "src")
    show(house)
    shared = house.shared()
    if "--shared" in sys.argv:
        for name, places in shared.items():
            print(f"{name}: {' '.join(places)}")
    return 1 if shared else 0


if __name__ == "__main__":
    sys.exit(main())
