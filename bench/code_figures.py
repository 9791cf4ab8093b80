"""Figures of the code by crate: files, lines, lines of code, public items, undocumented ones, longest file and function.

    python bench/code_figures.py
    python bench/code_figures.py --compare COMMIT
    python bench/code_figures.py --json > now.json

Reads crates/*/src, ui/src, src, src-tauri/src and xtask/src of the working tree, or of a commit (through `git archive`).
Test code is left out: folders named `tests`, files named `tests.rs` or ending in `_tests.rs`, and `#[cfg(test)]` modules.
Lines of code are lines that are neither blank nor only a comment. A public item is a `pub` function, type, trait, constant,
static, module or field, fields of private types included; it is documented if a doc comment stands above it or, for a
module, at the beginning of its file. With --compare, each figure is shown with its change since the commit. Needs only
Python and git.
"""
import argparse
import io
import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

from longest_functions import ROOT, blanked, closing, functions

ITEM = re.compile(r"^\s*pub (?:(?:const |async |unsafe )*fn|struct|enum|union|trait|mod|type|const|static|\w+\s*:)")
MODULE = re.compile(r"^\s*pub mod (\w+);")
TESTS = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*\))\)\]\s*(?:#\[[^\n]*\n\s*)*(?:pub(?:\([^)]*\))? )?mod \w+ \{")
COLUMNS = ["files", "lines", "code", "public", "undocumented", "longest_file", "longest_function"]


def sources(root):
    """The Rust files of each crate, by the crate's name."""
    folders = {folder.parent.name: folder for folder in sorted(root.glob("crates/*/src"))}
    folders |= {name: root / name / "src" for name in ("ui", "src-tauri", "xtask")}
    folders["(program)"] = root / "src"
    for crate, folder in folders.items():
        files = []
        for path in sorted(folder.rglob("*.rs")):
            inner = path.relative_to(folder)
            if "tests" not in inner.parts[:-1] and inner.name != "tests.rs" and not inner.name.endswith("_tests.rs"):
                files.append(path)
        if files:
            yield crate, files


def without_tests(text):
    """The lines of a file outside its test modules, and the same lines with comments and texts blanked."""
    blank = blanked(text)
    keep = [True] * (text.count("\n") + 1)
    for test in TESTS.finditer(blank):
        end = closing(blank, test.end() - 1)
        if end is not None:
            first, last = blank.count("\n", 0, test.start()), blank.count("\n", 0, end)
            keep[first : last + 1] = [False] * (last + 1 - first)
    lines = zip(keep, text.split("\n"), blank.split("\n"))
    return [(line, code) for kept, line, code in lines if kept]


def is_documented(lines, at):
    """Whether a doc comment stands above a line, attributes between them."""
    for line, _ in reversed(lines[:at]):
        shown = line.strip()
        # In a macro, `$(#[...])*` stands for the doc comment of its caller.
        if shown.startswith(("///", "$(#[")):
            return True
        if not shown.startswith(("#[", "//")) and not shown.endswith(("]", ")]")):
            return False
    return False


def has_module_doc(path, code):
    """Whether a line declares a module whose own file begins with a doc comment."""
    declared = MODULE.match(code)
    if not declared:
        return False
    folder = path.parent if path.name in ("lib.rs", "main.rs", "mod.rs") else path.with_suffix("")
    files = (folder / f"{declared[1]}.rs", folder / declared[1] / "mod.rs")
    return any(file.is_file() and file.read_text(encoding="utf-8").startswith("//!") for file in files)


def figures_of(files):
    """The figures of one crate."""
    row = dict.fromkeys(COLUMNS, 0)
    for path in files:
        lines = without_tests(path.read_text(encoding="utf-8"))
        row["files"] += 1
        count = len(lines) - (1 if lines and not lines[-1][0] else 0)
        row["lines"] += count
        row["longest_file"] = max(row["longest_file"], count)
        row["code"] += sum(bool(code.strip()) for _, code in lines)
        for at, (_, code) in enumerate(lines):
            if ITEM.match(code):
                row["public"] += 1
                row["undocumented"] += not (is_documented(lines, at) or has_module_doc(path, code))
        row["longest_function"] = max([row["longest_function"], *(length for _, _, length in functions(path))])
    return row


def figures(root):
    """The figures of each crate and of all together."""
    rows = {crate: figures_of(files) for crate, files in sources(root)}
    total = {name: sum(row[name] for row in rows.values()) for name in COLUMNS}
    for name in ("longest_file", "longest_function"):
        total[name] = max(row[name] for row in rows.values())
    return rows | {"(all)": total}


def figures_of_commit(commit):
    """The figures of a commit, which is unpacked into a temporary folder."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        return figures(Path(folder))


def table(rows, before):
    """The rows as text; `before` has the figures to compare with, or is None."""
    texts = [["crate", *COLUMNS]]
    for crate in list(rows) + [gone for gone in before or {} if gone not in rows]:
        now = rows.get(crate, dict.fromkeys(COLUMNS, 0))
        line = [crate]
        for name in COLUMNS:
            change = now[name] - before.get(crate, {}).get(name, 0) if before is not None else 0
            line.append(f"{now[name]} ({change:+})" if change else str(now[name]))
        texts.append(line)
    widths = [max(len(line[column]) for line in texts) for column in range(len(texts[0]))]
    for line in texts:
        cells = [text.ljust(width) if i == 0 else text.rjust(width) for i, (text, width) in enumerate(zip(line, widths))]
        print("  ".join(cells).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", metavar="COMMIT", help="show changes since a commit")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    args = parser.parse_args()
    rows = figures(ROOT)
    before = figures_of_commit(args.compare) if args.compare else None
    if args.json:
        print(json.dumps({"now": rows, "before": before} if before is not None else rows, indent=2))
    else:
        table(rows, before)


if __name__ == "__main__":
    main()
