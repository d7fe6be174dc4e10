"""Tables and pictures of docs/BENCHMARK.md, from the results."""

import math
import re
from xml.sax.saxutils import escape

import programs
from sizes import Sizes

DOCS = programs.ROOT / "docs"
PAGE, LOSS, SPEED = DOCS / "BENCHMARK.md", DOCS / "benchmark-loss.svg", DOCS / "benchmark-speed.svg"
BEGIN, END = "<!-- The script writes from here … -->", "<!-- … to here. -->"
WAYS = {"name": "own program, another's name", "bare": "by hand, unsigned", "signature": "by hand, a genuine one changed",
        "first": "a name that never wrote"}


def ordered(results: dict) -> list[tuple[str, dict]]:
    """Sorts the programs as in the list; those of others come last."""
    known = [program.name for program in programs.ALL]
    return sorted(results["programs"].items(), key=lambda item: known.index(item[0]) if item[0] in known else len(known))


def duration(seconds: float) -> str:
    """Formats a time with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            break
    value = seconds / size
    return f"{value:.{max(0, 2 - int(math.log10(value))) if value >= 1 else 2}f} {unit}"


def pair(times: dict | None) -> str:
    """Formats a median and a 99th percentile."""
    return f"{duration(times['median'])} / {duration(times['p99'])}" if times else "–"


def size(count: float) -> str:
    """Formats bytes for people."""
    return f"{count / 1e6:.1f} MB" if count else "0"


def bold(count: int) -> str:
    """Formats a number that stands out if it is not zero."""
    return f"**{count:,}**" if count else "0"


def outcome(found: dict | None) -> str:
    """Formats what was lost and doubled of what was accepted."""
    if not found:
        return "–"
    if "failed" in found:
        return "failed"
    text = f"{bold(found['lost'])} / {bold(found['doubled'])} of {found['accepted']:,}"
    if found.get("broken"):
        text += f", **{found['broken']}** of {found['cuts']} stores unusable"
    if found.get("late"):
        text += f", {found['late']} late"
    if found.get("stuck"):
        text += f", **{found['stuck']}** never accepted"
    return text


def table(head: list[str], rows: list[list[str]]) -> str:
    """Formats a table of Markdown; the first column is text."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def got(result: dict, name: str) -> dict:
    """Returns a scenario, or nothing if it was not measured or failed."""
    found = result.get(name) or {}
    return {} if "failed" in found else found


def losses(results: dict) -> str:
    """Writes the table of losses."""
    rows = []
    for _, result in ordered(results):
        forged, away, work = got(result, "forged"), got(result, "away"), got(result, "workload")
        kills = got(result, "kills")
        rows.append([result["title"], f"{work['syncs']:g}" if work.get("syncs") is not None else "–", outcome(result.get("workload")),
                     outcome(result.get("kills")) + (f" ({kills['kills']:,} kills)" if kills else ""), outcome(result.get("full")),
                     outcome(result.get("power")), f"{bold(forged['shown'])} of {forged['tried']}" if forged else "–",
                     f"{away['listed']} of {away['accepted']}" if away else "–"])
    return table(["program", "syncs a send", "workload", "killed", "disk full", "power cut", "forged and shown",
                  "listed after a day away"], rows)


def speeds(results: dict) -> str:
    """Writes the table of times."""
    rows = []
    for _, result in ordered(results):
        if not (work := got(result, "workload")):
            rows.append([result["title"], *["–"] * 6])
            continue
        rows.append([result["title"], f"{work['sends_a_second']:,.0f} /s", pair(work["send"]),
                     pair(work["arrival"]) + (" (polled)" if work["polled"] else ""), pair(work["list"]), pair(work["read"]),
                     pair(work["search"])])
    return table(["program", "sends, 8 clients", "send", "arrival", "list", "read", "search"], rows)


def costs(results: dict) -> str:
    """Writes the table of costs."""
    rows = []
    for _, result in ordered(results):
        work, tokens, away = got(result, "workload"), got(result, "tokens"), got(result, "away")
        memory = work.get("memory")
        rows.append([result["title"], duration(work["start"]) if work else "–", duration(away["seconds"]) if away else "–",
                     f"{size(memory['bytes'])} in {memory['processes']} processes" if memory else "–",
                     f"{tokens['written'] + tokens['read']:,} ({tokens['written']:,} + {tokens['read']:,})" if tokens else "–",
                     str(tokens["commands"]) if tokens else "–"])
    return table(["program", "start to first list", "the same after a day away", "memory at rest", "tokens (written + read)", "commands"],
                 rows)


def forgeries(results: dict) -> str:
    """Writes the table of forgeries."""
    rows = []
    for _, result in ordered(results):
        if forged := got(result, "forged"):
            said = [re.sub(r" [0-9a-f]{16}", " KEY", forged["ways"].get(way, "–")).split(": there are no")[0] for way in WAYS]
            rows.append([result["title"], *(f"**{text}**" if text == "shown as genuine" else text for text in said)])
    return table(["program", *WAYS.values()], rows)


def versions(results: dict) -> str:
    """Writes the table of programs."""
    rows = []
    for _, result in ordered(results):
        work = got(result, "workload")
        rows.append([result["title"], work.get("program", "–"), result.get("licence", ""), work.get("way", "–"),
                     "yes" if work.get("keys") else "no" if work else "–", f"{work['messages']:,}" if work else "–",
                     loads(result), result.get("date", "")])
    return table(["program", "version", "licence", "works as", "a repeat is harmless (key)", "messages of the workload", "load of the machine", "measured"], rows)


def loads(result: dict) -> str:
    """Formats how busy the machine was before the scenarios; the benchmark's own work of the last minute counts, too."""
    found = [scenario["load"] for scenario in result.values() if isinstance(scenario, dict) and "load" in scenario]
    return f"{min(found):.1f} to {max(found):.1f}" if found else "–"


def tables(results: dict) -> str:
    """Writes all tables."""
    machine = results["machine"]
    about = (f"{machine['cores']} × {machine['cpu']}, Linux {machine['kernel']}, {machine['file_system']}, Python {machine['python']}"
             if machine else "")
    short = [result["title"] for _, result in ordered(results) if (got(result, "workload").get("messages") or Sizes.messages) < Sizes.messages]
    note = (f"**A shorter run.** These rows have fewer messages, kills and cuts than this page says, and were measured beside other work. "
            f"Their times must not be compared: {'; '.join(short)}.") if short else ""
    parts = [note, "## What was lost", "Each cell is lost / doubled of what was accepted.", losses(results),
             "## How a forged message was shown", forgeries(results), "## Times", "Median / 99th percentile.", speeds(results),
             "## Costs", costs(results), "## Programs", versions(results), about]
    return "\n\n".join(part for part in parts if part)


def write(results: dict) -> None:
    """Writes tables and pictures."""
    text = tables(results).replace("## What was lost\n\n", "## What was lost\n\n![What each program lost, doubled and believed]"
                                   f"({LOSS.name})\n\n").replace("## Times\n\n", f"## Times\n\n![Times of each program]({SPEED.name})\n\n")
    page = PAGE.read_text()
    head, rest = page.split(BEGIN, 1)
    PAGE.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}")
    LOSS.write_text(draw_losses(results))
    SPEED.write_text(draw_speeds(results))


STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .small { font-size: 11px; fill: #59636e }
  .none { fill: none; stroke: #1a7f37; stroke-width: 2 }
  .some { fill: #cf222e; stroke: #cf222e }
  .ring { fill: none; stroke: #cf222e; stroke-width: 2 }
  .grid { stroke: #d1d9e0 }
  .ours { fill: #0969da; stroke: #0969da; stroke-width: 2 }
  .other { fill: #ffffff; stroke: #59636e; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9198a1 }
    .none { stroke: #3fb950 }
    .some { fill: #f85149; stroke: #f85149 }
    .ring { stroke: #f85149 }
    .grid { stroke: #3d444d }
    .ours { fill: #4493f8; stroke: #4493f8 }
    .other { fill: #0d1117; stroke: #9198a1 }
  }
"""


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    """Writes a whole SVG."""
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
            f'aria-labelledby="title">\n<title id="title">{escape(title)}</title>\n<style>{STYLE}</style>\n')
    return head + "\n".join(parts) + "\n</svg>\n"


def shares(result: dict) -> list[tuple[int, int] | None]:
    """Returns the counts of the columns of the picture, each with its whole."""
    cells: list[tuple[int, int] | None] = []
    for name in ("kills", "full", "power"):
        found = got(result, name)
        cells += [(found[what], found["accepted"]) if found else None for what in ("lost", "doubled")]
    forged, away = got(result, "forged"), got(result, "away")
    cells.append((forged["shown"], forged["tried"]) if forged else None)
    cells.append((away["accepted"] - away["listed"], away["accepted"]) if away else None)
    return cells


def draw_losses(results: dict) -> str:
    """Draws a ring for each program and scenario: green if nothing was lost, filled with red by the share that was."""
    left, step, top, row = 230, 84, 66, 30
    heads = ["killed:\nlost", "killed:\ndoubled", "disk full:\nlost", "disk full:\ndoubled", "power cut:\nlost", "power cut:\ndoubled",
             "forged,\nshown", "a day away:\nnot listed"]
    out = []
    for column, head in enumerate(heads):
        for line, text in enumerate(head.split("\n")):
            out.append(f'<text class="small" x="{left + column * step}" y="{24 + line * 15}" text-anchor="middle">{escape(text)}</text>')
    rows = ordered(results)
    for number, (_, result) in enumerate(rows):
        y = top + number * row
        out.append(f'<text x="8" y="{y + 4}">{escape(result["title"])}</text>')
        for column, cell in enumerate(shares(result)):
            x = left + column * step
            if cell is None:
                out.append(f'<text class="small" x="{x}" y="{y + 4}" text-anchor="middle">–</text>')
                continue
            count, of = cell
            out.append(f'<circle class="{"ring" if count else "none"}" cx="{x - 12}" cy="{y}" r="9"/>')
            if count:
                out.append(f'<circle class="some" cx="{x - 12}" cy="{y}" r="{max(2.0, 9 * math.sqrt(min(1, count / of))):.1f}"/>')
                out.append(f'<text class="small" x="{x + 2}" y="{y + 4}">{count:,}</text>')
    return picture(left + step * len(heads) - 20, top + row * len(rows), "What each program lost, doubled and believed", out)


def draw_speeds(results: dict) -> str:
    """Draws two lines for each program, from the median to the 99th percentile: a send, and an arrival."""
    left, right, top, row = 230, 780, 56, 34
    rows = [(result["title"], got(result, "workload")) for _, result in ordered(results) if got(result, "workload")]
    first, last = -4, 1

    def at(seconds: float) -> float:
        share = (math.log10(seconds) - first) / (last - first)
        return left + min(1.0, max(0.0, share)) * (right - left)

    bottom = top + row * len(rows)
    out = ['<circle class="ours" cx="16" cy="14" r="5"/><text x="28" y="18">send, median to 99th percentile</text>',
           '<circle class="other" cx="266" cy="14" r="5"/><text x="278" y="18">arrival at a reader who waits, the same</text>',
           f'<text class="small" x="{right}" y="18" text-anchor="end">each line is ten times the one before</text>']
    for power, label in zip(range(first, last + 1), ("0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s"), strict=True):
        x = at(10.0**power)
        out.append(f'<line class="grid" x1="{x:.1f}" y1="{top - 12}" x2="{x:.1f}" y2="{bottom}"/>')
        out.append(f'<text class="small" x="{x:.1f}" y="{top - 18}" text-anchor="middle">{label}</text>')
    for number, (title, work) in enumerate(rows):
        y = top + number * row + 10
        out.append(f'<text x="8" y="{y + 4}">{escape(title)}</text>')
        for style, times, offset in (("ours", work["send"], -5), ("other", work["arrival"], 7)):
            if times:
                a, b = at(times["median"]), at(times["p99"])
                out.append(f'<line class="{style}" x1="{a:.1f}" y1="{y + offset}" x2="{b:.1f}" y2="{y + offset}"/>')
                out.append(f'<circle class="{style}" cx="{a:.1f}" cy="{y + offset}" r="4.5"/>')
    return picture(right + 30, bottom + 8, "Times of a send and of an arrival for each program", out)
