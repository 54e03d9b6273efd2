"""What bench-redis and bench-grep have in common: contenders measured in turn, what is said of them (medians, and how far
the rounds agree), and what trapless and the system tell of a run."""
import json, os, statistics, subprocess


def rounds_of(contenders, rounds):
    """Every contender once in each round, beginning with another one each time, so that none has a place of its own."""
    names = list(contenders)
    for turn in range(rounds):
        yield from names[turn % len(names):] + names[:turn % len(names)]


def middle_half(values):
    """Median and quartiles."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return median, low, high


def of_bare(values, bare, show):
    """Each round's value by the same round's of the bare run: the median of these, and their quartiles. What slows the
    machine down for a while is in both. Where `values` is `bare` itself it is by its median, which shows how steady the
    machine was."""
    by = [statistics.median(bare)] * len(bare) if values is bare else bare
    median, low, high = middle_half([value / other for value, other in zip(values, by)])
    return f"{show(1 if values is bare else median)} ({show(low)}–{show(high)})"


def listed(trapless, path, pattern):
    """What `trapless list` says of functions of a file: {name: row}, of names that stand for one function."""
    out = subprocess.run([trapless, "list", "-f", "json", f"{path}:{pattern}"], capture_output=True, text=True).stdout
    rows = [row for row in map(json.loads, out.splitlines()) if "function" in row]
    names = [row["function"] for row in rows]
    return {row["function"]: row for row in rows if names.count(row["function"]) == 1}


def hits_of(summary, mechanism, kind=None):
    """What a summary of trapless says: {function: hits}. Raises if a hit was lost, or a site took another mechanism than
    was asked for."""
    hits = {}
    for probe in summary["probes"]:
        if probe["lost"] or probe["mechanism"] != mechanism:
            raise ValueError(f"not what was asked for: {probe}")
        if kind in (None, probe["kind"]):
            hits[probe["function"]] = probe["hits"]
    return hits


def processor_ns(pid):
    """Processor time that a process has used, its children's processes' with it; 0 if it is gone."""
    total = 0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                total += int(file.read().split()[0])
            with open(f"/proc/{pid}/task/{task}/children") as file:
                total += sum(processor_ns(child) for child in file.read().split())
    except FileNotFoundError:
        pass
    return total
