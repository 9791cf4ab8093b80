#!/bin/sh
# Runs all GPU benchmarks on this machine; the output goes to the terminal and to bench/gpu/results-DATE.txt, which git
# ignores. Arguments are passed to none of them: edit the lines below, or run the scripts one by one.
set -eu
cd "$(dirname "$0")/../.."
results="bench/gpu/results-$(date -u +%Y%m%dT%H%M%SZ).txt"
program="${CARGO_TARGET_DIR:-target}/release/cytoscope"
python="${PYTHON:-python3}"
{
    "$program" --version
    "$program" devices || true
    "$python" bench/gpu/inference.py || true
    "$python" bench/gpu/training.py || true
    "$python" bench/gpu/training.py --filters 32,64,128,256 || true
    "$python" bench/gpu/options.py || true
    "$python" bench/gpu/whole_stack.py || true
} 2>&1 | tee "$results"
echo "written to $results"
