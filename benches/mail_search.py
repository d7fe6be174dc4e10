"""Search beside the programs that people search mail with: notmuch and mu, over a Maildir with the same messages."""

import shutil
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import store
from harness import BenchError, Place, Row, seconds
from search import QUERIES, processor_seconds, used_by

#: The queries that each program is asked, as a process of its own each time.
ASKED = QUERIES[::10]


@dataclass(frozen=True)
class Searcher:
    """A program that indexes a Maildir and finds words in it."""

    name: str
    setting: tuple[str, ...]
    index: tuple[str, ...]
    find: tuple[str, ...]
    database: str


#: `{mail}` stands for the Maildir. Each prints ten hits, the newest first.
SEARCHERS = (
    Searcher("notmuch", (), ("notmuch", "new", "--quiet", "--no-hooks"),
             ("notmuch", "search", "--limit=10"), "{mail}/.notmuch"),
    Searcher("mu", ("mu", "init", "--quiet", "--muhome={home}/mu", "--maildir={mail}"), ("mu", "index", "--quiet", "--muhome={home}/mu"),
             ("mu", "find", "--muhome={home}/mu", "--maxnum=10", "--sortfield=date", "--reverse"), "{home}/mu"),
)


def rows(fresh, count: int) -> Iterator[Row]:
    """An index, its size, and queries: `msgfs search` over a mount beside each program."""
    where: Place = fresh()
    store.generate(where.store, store.Shape(count, to_me=1.0))
    where.run("status")
    ours = used_by(where, "search", "deploy")
    size = sum(path.stat().st_size for path in where.cache.glob("*/search*") if path.is_file())
    mail = where.root / "mail"
    with where.mounted():
        shutil.copytree(where.mountpoint / ".maildir", mail)
        found = len(list((mail / "cur").iterdir())) + len(list((mail / "new").iterdir()))
        if found != count:
            raise BenchError(f"the Maildir has {found} messages, expected {count}")
        asked = statistics.median(seconds(lambda query=query: where.run("search", query)) for query in ASKED)
        for searcher in SEARCHERS:
            yield from beside(where, mail, searcher, (ours, size, asked), count)


def beside(where: Place, mail: Path, searcher: Searcher, measured: tuple[float, float, float], count: int) -> Iterator[Row]:
    """The rows with one of the other programs."""
    (where.home / ".notmuch-config").write_text(f"[database]\npath={mail}\n[new]\ntags=\n[user]\nname=Bob\nprimary_email=bob@localhost\n")

    def ran(words: tuple[str, ...], *more: str) -> float:
        return processor_seconds(where, *(word.format(mail=mail, home=where.home) for word in words), *more)

    if searcher.setting:
        ran(searcher.setting)
    taken = ran(searcher.index)
    database = Path(searcher.database.format(mail=mail, home=where.home))
    theirs = sum(path.stat().st_size for path in database.rglob("*") if path.is_file())
    asking = statistics.median(seconds(lambda query=query: ran(searcher.find, query)) for query in ASKED)
    ours, size, asked = measured
    yield Row(f"index of words of {count:,} messages: processor", ours, "s", f"`{' '.join(searcher.index[:2])}`", taken)
    yield Row("its size", size, "bytes", f"that of {searcher.name}", theirs)
    yield Row(f"a query as a process, median of {len(ASKED)}", asked, "s", f"`{' '.join(searcher.find[:2])}`", asking)
