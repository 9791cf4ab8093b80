"""Measures the start-up time of the window with a stack: from starting the program until its title names the file.

    cargo build --release
    python bench/window_start.py [FILE] [--rounds 7]

Needs xvfb and xdotool. The title is set with the first frame after the stack has opened. The first start warms the page
cache and is not counted.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from machine import cpu_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default="sample_data/nuclei_raw.tif")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--binary", default="target/release/cytoscope")
    args = parser.parse_args()
    print(f"CPU: {cpu_name()}", flush=True)
    display = ":93"
    home = tempfile.mkdtemp()
    env = dict(os.environ, DISPLAY=display, HOME=home, XDG_RUNTIME_DIR=home, XDG_DATA_HOME=home)
    server = subprocess.Popen(["Xvfb", display, "-screen", "0", "1500x950x24", "-nolisten", "tcp"], stderr=subprocess.DEVNULL)
    time.sleep(1.5)
    windows, stacks = [], []
    try:
        for _ in range(args.rounds + 1):
            began = time.perf_counter()
            window = subprocess.Popen([args.binary, args.file], env=env, stderr=subprocess.DEVNULL)
            shown = None
            while True:
                search = ["xdotool", "search", "--onlyvisible", "--name", "Cytoscope$"]
                found = subprocess.run(search, env=env, capture_output=True, text=True)
                now = time.perf_counter() - began
                if found.stdout.strip():
                    shown = shown or now
                    ask = ["xdotool", "getwindowname", found.stdout.split()[0]]
                    title = subprocess.run(ask, env=env, capture_output=True, text=True).stdout
                    if Path(args.file).name in title:
                        break
                if now > 60:
                    raise SystemExit("the window did not appear within 60 s")
            windows.append(shown)
            stacks.append(time.perf_counter() - began)
            window.terminate()
            window.wait()
    finally:
        server.terminate()
    for name, values in (("window on screen", windows[1:]), ("with the stack", stacks[1:])):
        print(f"{name}: median {statistics.median(values) * 1e3:.0f} ms, {min(values) * 1e3:.0f} to {max(values) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
