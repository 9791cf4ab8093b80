"""The longest functions of the program: file:line, lines and name, longest first.

    python bench/longest_functions.py [FOLDER...] [--count 40] [--above 80]

Reads rustfmt-formatted Rust, by default crates/*/src, src and ui/src: a function runs from the line with `fn` to the line
that closes its body, both counted. Folders named `tests`, files named `tests.rs` and `#[cfg(test)]` modules are skipped.
A function inside another one counts in both. Needs only Python.
"""
import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTION = re.compile(
    r"^\s*(?:pub(?:\([^)]*\))? )?(?:default )?(?:const )?(?:async )?(?:unsafe )?(?:extern \"[^\"]*\" )?fn (\w+)"
)
RAW = re.compile(r"b?r(#*)\"")
CHARACTER = re.compile(r"'(?:\\(?:u\{[0-9a-fA-F_]+\}|x[0-9a-fA-F]{2}|.)|[^\\'\n])'")


def blanked(text):
    """The text with comments, strings and character literals replaced by spaces; line ends stay."""
    out, at = [], 0

    def blank(end):
        nonlocal at
        out.append("".join(c if c == "\n" else " " for c in text[at:end]))
        at = end

    while at < len(text):
        rest = text[at : at + 2]
        raw = RAW.match(text, at) if text[at] in "br" and not (at and (text[at - 1].isalnum() or text[at - 1] == "_")) else None
        if rest == "//":
            end = text.find("\n", at)
            blank(len(text) if end < 0 else end)
        elif rest == "/*":
            depth, end = 1, at + 2
            while depth and end < len(text):
                step = {"/*": 1, "*/": -1}.get(text[end : end + 2], 0)
                depth += step
                end += 2 if step else 1
            blank(end)
        elif raw:
            end = text.find('"' + raw.group(1), raw.end())
            blank(len(text) if end < 0 else end + 1 + len(raw.group(1)))
        elif text[at] == '"':
            end = at + 1
            while end < len(text) and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            blank(end + 1)
        elif text[at] == "'" and (literal := CHARACTER.match(text, at)):
            blank(literal.end())
        else:
            out.append(text[at])
            at += 1
    return "".join(out)


def closing(text, start):
    """The position of the bracket that closes the first `{` at or after `start`; `None` if a `;` comes first."""
    depth = 0
    brackets = 0
    for at in range(start, len(text)):
        c = text[at]
        if c in "([":
            brackets += 1
        elif c in ")]":
            brackets -= 1
        elif c == ";" and depth == 0 and brackets == 0:
            return None
        elif c == "{":
            depth += 1
        elif c == "}":
            depth -= 1
            if depth == 0:
                return at
    return None


def functions(path):
    """Each function of a file outside its test modules: name, first line, number of lines."""
    text = blanked(path.read_text(encoding="utf-8"))
    for test in re.finditer(r"#\[cfg\((?:test|all\(test\b[^\]]*\))\)\]\s*(?:pub(?:\([^)]*\))? )?mod \w+ \{", text):
        end = closing(text, test.end() - 1)
        if end is not None:
            text = text[: test.start()] + re.sub(r"[^\n]", " ", text[test.start() : end]) + text[end:]
    start = 0
    for number, line in enumerate(text.split("\n"), 1):
        if found := FUNCTION.match(line):
            end = closing(text, start)
            if end is not None:
                yield found.group(1), number, text.count("\n", start, end) + 1
        start += len(line) + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=40, help="functions to print")
    parser.add_argument("--above", type=int, default=0, help="print only functions with more lines")
    args = parser.parse_args()
    folders = args.folders or [*sorted(ROOT.glob("crates/*/src")), ROOT / "src", ROOT / "ui" / "src"]
    rows = []
    for folder in folders:
        for path in sorted(folder.rglob("*.rs")):
            inner = path.relative_to(folder)
            if "tests" in inner.parts[:-1] or inner.name == "tests.rs":
                continue
            name = path.resolve()
            shown = name.relative_to(ROOT) if name.is_relative_to(ROOT) else path
            rows += [(lines, f"{shown}:{line}", function) for function, line, lines in functions(path)]
    rows.sort(key=lambda row: (-row[0], row[1]))
    for lines, place, function in [row for row in rows if row[0] > args.above][: args.count]:
        print(f"{lines:5}  {place}  {function}")


if __name__ == "__main__":
    main()
