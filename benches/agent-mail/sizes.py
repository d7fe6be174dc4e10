"""Sizes of a run."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sizes:
    """The sizes of a whole run."""

    agents: int = 40
    clients: int = 8
    seed: int = 250
    messages: int = 2_000
    # Messages that each agent reads afterwards.
    reads: int = 5
    starts: int = 5
    arrivals: int = 200
    arrival_seconds: float = 60.0
    kills: int = 1_000
    # A program that needs longer for its kills gets fewer of them, and the table says so.
    kill_seconds: float = 900.0
    full: int = 300
    cuts: int = 10
    away: int = 200

    def scaled(self, share: float) -> "Sizes":
        """Returns sizes of a shorter run: with so large a share of the messages, kills, cuts and times."""
        def part(count: int) -> int:
            return max(1, round(count * share))

        return replace(self, messages=part(self.messages), reads=part(self.reads), starts=part(self.starts), arrivals=part(self.arrivals),
                       arrival_seconds=self.arrival_seconds * share, kills=part(self.kills), cuts=part(self.cuts))

    @classmethod
    def quick(cls) -> "Sizes":
        """Returns sizes that are enough to see that everything works, and not enough to learn anything."""
        return cls(agents=8, clients=4, seed=16, messages=40, reads=2, starts=1, arrivals=5, arrival_seconds=10, kills=10,
                   kill_seconds=60, full=80, cuts=2, away=30)
