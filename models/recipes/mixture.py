"""Writes the tables train.csv and valid.csv that mix simulated and real stacks.

    python3 models/recipes/mixture.py SIMULATED BBBC050 OUT [--late] [--bodies BODIES] [--wide WIDEFIELD]

SIMULATED holds stacks of `cytoscope simulate`, BBBC050 holds EmbNN_tTTT_raw.tif and EmbNN_tTTT_labels.tif. Embryos 10 and
11 are in neither table: they are the test set. Without --late, each real stack is drawn six times as often as a simulated
one (40 % of all patches). With --late, late time points, which have the most and the closest nuclei, are drawn more often
than early ones (49 % of all patches are real). With --bodies, stacks of `true_bodies.py` are a further part (28 % of all
patches with 400 such stacks and 900 of SIMULATED). With --wide, stacks of `widefield.py` are another part, and each part has a
fixed share of the patches (SHARES), whatever the numbers of stacks.
"""
import argparse
import re
from pathlib import Path

VALIDATION = ["Emb09_t451", "Emb09_t501", "Emb05_t451", "Emb02_t401"]
LATE_WEIGHTS = {351: 8, 401: 14, 451: 24, 501: 24}
# Of simulated stacks, bodies, widefield stacks and embryos, with --wide.
SHARES = [0.25, 0.2, 0.2, 0.35]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("simulated", "real", "out"):
        parser.add_argument(name, type=lambda text: Path(text).resolve())
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--bodies", type=lambda text: Path(text).resolve())
    parser.add_argument("--wide", type=lambda text: Path(text).resolve())
    options = parser.parse_args()
    late, simulated, real, out = options.late, options.simulated, options.real, options.out
    bodies = sorted(options.bodies.glob("*_raw.tif")) if options.bodies else []
    wide = sorted(options.wide.glob("*_raw.tif")) if options.wide else []
    stacks = sorted(simulated.glob("*_raw.tif"))
    embryos = sorted(real.glob("Emb0[1-9]_t*_raw.tif"))
    held = set(stacks[::300][:3])
    held |= {e for e in embryos if any(name in e.name for name in VALIDATION)}
    held |= set(bodies[::134])
    held |= set(wide[:: len(wide) // 3 or 1][:3])
    weight = 0.4 / 0.6 * (len(stacks) - 3) / (len(embryos) - 3)

    def weight_of(raw):
        if raw.parent != real:
            return 1.75 if raw in bodies else 1.0
        time = int(re.search(r"_t(\d+)_", raw.name)[1])
        return LATE_WEIGHTS.get(time, 5) if late else weight

    parts = [stacks, bodies, wide, embryos]
    totals = [sum(weight_of(raw) for raw in part if raw not in held) for part in parts]
    factors = {raw.parent: share / total for part, share, total in zip(parts, SHARES, totals) if wide for raw in part[:1]}

    out.mkdir(parents=True, exist_ok=True)
    for name, validation in (("train", False), ("valid", True)):
        with open(out / f"{name}.csv", "w") as table:
            table.write("raw,seg,weight\n")
            for raw in stacks + embryos + bodies + wide:
                if (raw in held) == validation:
                    labels = str(raw).replace("_raw.tif", "_labels.tif")
                    drawn = weight_of(raw) * 1000 * factors[raw.parent] if wide else weight_of(raw)
                    table.write(f"{raw},{labels},{1.0 if validation else drawn:.3f}\n")


main()
