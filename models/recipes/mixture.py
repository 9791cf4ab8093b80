"""Writes the tables train.csv and valid.csv that mix simulated and real stacks.

    python3 models/recipes/mixture.py SIMULATED BBBC050 OUT [--late]

SIMULATED holds stacks of `cytoscope simulate`, BBBC050 holds EmbNN_tTTT_raw.tif and EmbNN_tTTT_labels.tif. Embryos 10 and
11 are in neither table: they are the test set. Without --late, each real stack is drawn six times as often as a simulated
one (40 % of all patches). With --late, late time points, which have the most and the closest nuclei, are drawn more often
than early ones (49 % of all patches are real).
"""
import re
import sys
from pathlib import Path

VALIDATION = ["Emb09_t451", "Emb09_t501", "Emb05_t451", "Emb02_t401"]
LATE_WEIGHTS = {351: 8, 401: 14, 451: 24, 501: 24}


def main():
    late = "--late" in sys.argv
    simulated, real, out = (Path(a).resolve() for a in sys.argv[1:] if not a.startswith("--"))
    stacks = sorted(simulated.glob("*_raw.tif"))
    embryos = sorted(real.glob("Emb0[1-9]_t*_raw.tif"))
    held = set(stacks[::300][:3])
    held |= {e for e in embryos if any(name in e.name for name in VALIDATION)}
    weight = 0.4 / 0.6 * (len(stacks) - 3) / (len(embryos) - 3)

    def weight_of(raw):
        if raw.parent != real:
            return 1.0
        time = int(re.search(r"_t(\d+)_", raw.name)[1])
        return LATE_WEIGHTS.get(time, 5) if late else weight

    out.mkdir(parents=True, exist_ok=True)
    for name, validation in (("train", False), ("valid", True)):
        with open(out / f"{name}.csv", "w") as table:
            table.write("raw,seg,weight\n")
            for raw in stacks + embryos:
                if (raw in held) == validation:
                    labels = str(raw).replace("_raw.tif", "_labels.tif")
                    table.write(f"{raw},{labels},{1.0 if validation else weight_of(raw):.2f}\n")


main()
