"""The CPU that a benchmark runs on, which each script prints with its figures."""
import os
import platform
import subprocess


def cpu_name():
    """Returns the name of the CPU as its maker writes it, and the number of cores that this process may use."""
    name = ""
    try:
        if platform.system() == "Darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        else:
            with open("/proc/cpuinfo") as file:
                name = next((line.split(":", 1)[1] for line in file if line.startswith("model name")), "")
    except (OSError, subprocess.CalledProcessError):
        # The general name remains.
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name.strip() or platform.processor() or 'unknown CPU'}, {cores} cores"
