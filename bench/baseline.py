"""Stores the times of the criterion suites as a baseline, and compares a later build with it.

    python bench/baseline.py store FOLDER [--rounds 5] [--seconds 1] [--filter kernels] [--checkout CHECKOUT]
    python bench/baseline.py compare BASELINE.json [--limit 1.1] [--filter kernels] [--checkout CHECKOUT]

`store` builds the suites of the checkout (by default the one that this script is in), runs them in several rounds, and
writes a file to FOLDER that states the CPU, the commit, the date and the median that criterion found in each round.
`compare` does the same with the rounds and the measurement time of a stored baseline, and prints the ratio of the medians
with its range: from the shortest time now to the longest in the baseline, and the reverse. A range that contains 1 may be
noise. The exit code is 1 if the whole range of a benchmark is above --limit. Times of different CPUs say nothing about
the code, so a baseline of another CPU is refused. What else the machine does may change between the two runs;
bench/regression.py, which runs two builds in turns, is not affected by that. --built runs the programs of an earlier `cargo
bench --no-run` instead of building them. All suites run with one thread.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

from machine import cpu_name
from regression import SUITES, at_least_two, measure, positive, program

FORMAT = 1


def output_of(words, folder):
    """What a program prints when it runs in a folder."""
    try:
        return subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{' '.join(words)}: {error}")


def executables(messages):
    """The programs of the suites that Cargo names in its JSON messages."""
    found = {}
    for line in messages.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        name = message.get("target", {}).get("name")
        if message.get("reason") == "compiler-artifact" and name in SUITES and message.get("executable"):
            found[name] = pathlib.Path(message["executable"])
    missing = [suite for suite in SUITES if suite not in found]
    if missing:
        sys.exit(f"cargo bench --no-run named no program of {', '.join(missing)}")
    return found


def programs(checkout, built):
    """The programs of the suites; they are built first unless `built`."""
    if built:
        return {suite: program(checkout, suite) for suite in SUITES}
    words = ["cargo", "bench", "--no-run", "--message-format=json-render-diagnostics"]
    return executables(output_of(words + [word for suite in SUITES for word in ("--bench", suite)], checkout))


def run(asked, rounds, seconds):
    """The seconds of each benchmark in each round, with the origin of the times."""
    def git(*words):
        return output_of(["git", *words], asked.checkout).strip()

    origin = {
        "format": FORMAT,
        "cpu": cpu_name(),
        "commit": git("rev-parse", "HEAD"),
        "commit_date": git("show", "--no-patch", "--format=%cI", "HEAD"),
        "has_local_changes": bool(git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no")),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "measurement_secs": seconds,
    }
    times = {}
    suites = programs(asked.checkout, asked.built)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for path in suites.values():
            for name, median in measure(path, asked.filter, seconds).items():
                times.setdefault(name, []).append(median)
    if not times:
        sys.exit(f"no benchmark has a name that matches {asked.filter!r}")
    return {**origin, "round_secs": dict(sorted(times.items()))}


def write_new(path, text):
    """Writes a file that must not exist, beside its place first, so that it is complete or absent."""
    part = path.with_name(f"{path.name}.tmp")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        part.unlink()
        sys.exit(f"{path} already exists; run the command again")
    part.rename(path)


def time_text(seconds):
    """A time with four digits, in ns below 1 µs, or else in µs."""
    return f"{1e9 * seconds:.4g} ns" if seconds < 1e-6 else f"{1e6 * seconds:.2f} µs"


def store(asked):
    # A folder that cannot be written to is reported before the measurement.
    asked.folder.mkdir(parents=True, exist_ok=True)
    baseline = run(asked, asked.rounds, asked.seconds)
    moment = "".join(c for c in baseline["date"][:19] if c not in "-:")
    path = asked.folder / f"{moment}Z-{baseline['commit'][:10]}.json"
    write_new(path, json.dumps(baseline, indent=2) + "\n")
    print(f"CPU: {baseline['cpu']}")
    for name, secs in baseline["round_secs"].items():
        low, middle, high = map(time_text, (min(secs), statistics.median(secs), max(secs)))
        print(f"{name:40} {middle:>12} ({low} to {high})")
    print(f"wrote {path}")


def read_baseline(path):
    """A stored baseline; the program ends if the file is none."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        sys.exit(f"{path}: not a baseline of format {FORMAT}; bench/baseline.py store writes one")
    try:
        times = stored["round_secs"]
        is_valid = all(secs and all(value > 0 for value in secs) for secs in times.values())
        is_valid = is_valid and stored["measurement_secs"] > 0 and len(times) > 0
        stored["cpu"], stored["commit"], stored["date"]
    except (AttributeError, KeyError, TypeError) as error:
        sys.exit(f"{path}: damaged baseline ({error!r}); store it again")
    if not is_valid:
        sys.exit(f"{path}: damaged baseline (times must be above 0); store it again")
    return stored


def ratio(old, new):
    """The ratio of two medians, and its range from the extremes: its lowest and highest value."""
    return statistics.median(new) / statistics.median(old), min(new) / max(old), max(new) / min(old)


def table(old, new, limit):
    """The lines of a comparison, and the names of the benchmarks that are slower."""
    lines, slower = [f"{'benchmark':40} {'baseline':>12} {'now':>12}  now/baseline (range)"], []
    for name in sorted({*old, *new}):
        if name not in old or name not in new:
            lines.append(f"{name:40} only {'in the baseline' if name in old else 'now'}")
            continue
        middle, low, high = ratio(old[name], new[name])
        mark = "  SLOWER" if low > limit else "  faster" if high < 1 / limit else ""
        slower += [name] if low > limit else []
        left, right = (time_text(statistics.median(secs)) for secs in (old[name], new[name]))
        lines.append(f"{name:40} {left:>12} {right:>12}  {middle:.3f} ({low:.3f} to {high:.3f}){mark}")
    return lines, slower


def origin_text(times):
    """The commit and date of times, as a phrase."""
    return f"{times['commit'][:10]}{' with local changes' if times.get('has_local_changes') else ''}, {times['date']}"


def compare(asked):
    stored = read_baseline(asked.baseline)
    if stored["cpu"] != cpu_name():
        sys.exit(f"{asked.baseline} was measured on {stored['cpu']}, and this is {cpu_name()}: store a baseline on this machine")
    rounds = max(map(len, stored["round_secs"].values()))
    now = run(asked, rounds, stored["measurement_secs"])
    print(f"CPU: {now['cpu']}\nbaseline: {origin_text(stored)}\nnow: {origin_text(now)}\nrounds: {rounds}")
    # Benchmarks that the filter leaves out are not missing.
    old = {name: secs for name, secs in stored["round_secs"].items() if not asked.filter or name in now["round_secs"]}
    lines, slower = table(old, now["round_secs"], asked.limit)
    print("\n".join(lines))
    sys.exit(1 if slower else 0)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = arguments.add_subparsers(required=True)
    to_store = commands.add_parser("store", help="measure this build, and write its times to a folder")
    to_store.add_argument("folder", type=pathlib.Path)
    to_store.add_argument("--rounds", type=at_least_two, default=5)
    to_store.add_argument("--seconds", type=positive, default=1.0, help="measurement time of each benchmark in a round")
    to_store.set_defaults(command=store)
    to_compare = commands.add_parser("compare", help="measure this build, and compare it with stored times")
    to_compare.add_argument("baseline", type=pathlib.Path)
    to_compare.add_argument("--limit", type=positive, default=1.1, help="ratio that counts as a regression")
    to_compare.set_defaults(command=compare)
    here = pathlib.Path(__file__).resolve().parent.parent
    for command in (to_store, to_compare):
        command.add_argument("--filter", default="", help="only benchmarks whose name matches this")
        command.add_argument("--checkout", type=pathlib.Path, default=here, help="folder of the checkout")
        command.add_argument("--built", action="store_true", help="run the programs that are built, without building")
    asked = arguments.parse_args()
    asked.command(asked)


if __name__ == "__main__":
    main()
