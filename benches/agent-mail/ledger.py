"""A record of what was accepted and of what became of it."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from client import Adapter

TOKEN = re.compile(r"\bm(\d{6})\b")


@dataclass
class Ledger:
    """Messages by their numbers. Each must come once to each recipient if it was accepted."""

    numbers: Iterable[int] = field(default_factory=itertools.count)
    accepted: set[tuple[int, str]] = field(default_factory=set)
    refused: set[tuple[int, str]] = field(default_factory=set)

    def subject(self) -> tuple[int, str]:
        """Returns the number of a new message, and the subject that tells it."""
        number = next(iter(self.numbers))
        return number, f"m{number:06} review the parser"

    def note(self, number: int, to: Iterable[str], accepted: bool) -> None:
        """Notes what the sender was told."""
        (self.accepted if accepted else self.refused).update((number, name) for name in to)

    def count(self, shown: Counter[tuple[int, str]]) -> dict[str, int]:
        """Compares with what the recipients are shown."""
        return {"accepted": len(self.accepted), "refused": len(self.refused - self.accepted),
                "lost": sum(shown[pair] == 0 for pair in self.accepted),
                "doubled": sum(count > 1 for count in shown.values())}


def shown_by(adapter: Adapter, names: Iterable[str]) -> Counter[tuple[int, str]]:
    """Counts how often each message is shown to each of these, read or not."""
    shown: Counter[tuple[int, str]] = Counter()
    for name in names:
        for message in adapter.insist("everything", me=name)["messages"]:
            if found := TOKEN.search(message["text"]):
                shown[int(found[1]), name] += 1
    return shown
