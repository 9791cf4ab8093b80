"""Makes numcodecs.json with numcodecs 0.16.6: python make_numcodecs.py.

Each entry states a chunk of 8 samples: the type of the samples in Zarr 2 and 3, the filters of samples and the codecs of bytes,
the stored bytes, and the bytes of the samples that numcodecs decodes from them.
"""

import json
import pathlib

import numpy as np
from numcodecs import AsType, BitRound, Delta, FixedScaleOffset, PackBits, Quantize, Shuffle
from numcodecs.checksum32 import CRC32, CRC32C, Adler32, JenkinsLookup3
from numcodecs.fletcher32 import Fletcher32

U2 = np.array([500, 255, 256, 65535, 0, 7, 7, 40000], "<u2")
F4 = np.array([0, -1.5, 3.25, 1e3, 0.1, -0.3, 7, 250], "<f4")
F8 = F4.astype("<f8") * 1.25
F2 = F4.astype("<f2")
BITS = np.array([1, 0, 0, 1, 1, 1, 0, 1], bool)


def entry(data, filters, codecs=()):
    encoded = data
    for step in filters:
        encoded = np.ascontiguousarray(step.encode(encoded))
    stored = encoded.tobytes()
    for step in codecs:
        stored = bytes(step.encode(np.frombuffer(stored, "u1")))
    decoded = stored
    for step in reversed(codecs):
        decoded = bytes(step.decode(decoded))
    decoded = np.frombuffer(decoded, encoded.dtype)
    for step in reversed(filters):
        decoded = np.asarray(step.decode(decoded))
    return {
        "v2": data.dtype.str, "v3": data.dtype.name, "filters": [step.get_config() for step in filters],
        "codecs": [step.get_config() for step in codecs], "stored": list(stored), "samples": list(decoded.tobytes()),
    }


ENTRIES = [
    entry(F8, [AsType("<f4", "<f8")]),
    entry(U2, [AsType("<i4", "<u2")]),
    entry(U2, [AsType("<f4", "<u2")]),
    entry(F8, [Quantize(1, "<f8", "<f4")]),
    entry(F4, [BitRound(8)]),
    entry(F4, [FixedScaleOffset(-100, 20, "<f4", "<u2")]),
    entry(F4, [FixedScaleOffset(3.3, 7.7, "<f4")]),
    entry(F2, [FixedScaleOffset(3.3, 7.7, "<f2")]),
    entry(U2.view("<i2"), [FixedScaleOffset(-3.5, 2.5, "<i2", "<i4")]),
    entry(U2, [Delta("<u2")]),
    entry(U2, [Delta("<u2", "<i4")]),
    entry(F4, [Delta("<f4")]),
    entry(F2, [Delta("<f2")]),
    entry(F8, [Delta("<f8", "<f4")]),
    entry(BITS, [PackBits()]),
    entry(F4, [FixedScaleOffset(-100, 20, "<f4", "<u2"), Delta("<u2")]),
    entry(U2, [], [CRC32()]),
    entry(U2, [], [CRC32(location="end")]),
    entry(U2, [], [CRC32C()]),
    entry(U2, [], [CRC32C(location="start")]),
    entry(U2, [], [Adler32()]),
    entry(U2, [], [Adler32(location="end")]),
    entry(U2, [], [Fletcher32()]),
    entry(U2, [], [JenkinsLookup3()]),
    entry(U2, [], [JenkinsLookup3(initval=4000000000)]),
    entry(F4, [Quantize(2, "<f4")], [Shuffle(4), CRC32()]),
]
lines = ",\n".join(json.dumps(item, separators=(",", ":")) for item in ENTRIES)
pathlib.Path(__file__).with_name("numcodecs.json").write_text(f"[\n{lines}\n]\n")
