"""Makes pcodec.json with numcodecs 0.16.6 and pcodec 1.1.0: python make_pcodec.py.

Each entry states a chunk of 600 samples, of which the sample i is i * i % 50 as an integer, and (i * i % 50 - 25) / 8 as a float:
the type of the samples in Zarr 2 and 3, the settings of the codec, and the stored bytes.
"""

import json
import pathlib

import numpy as np
from numcodecs.pcodec import PCodec

NUMBERS = np.arange(600) ** 2 % 50


def entry(dtype, **settings):
    samples = NUMBERS.astype(dtype) if dtype[1] in "iu" else ((NUMBERS - 25) / 8).astype(dtype)
    codec = PCodec(**settings)
    stored = codec.encode(samples)
    assert (codec.decode(stored) == samples).all()
    return {"v2": dtype, "v3": np.dtype(dtype).name, "codec": codec.get_config(), "stored": list(stored)}


ENTRIES = [entry(dtype) for dtype in ["<u2", "<u4", "<u8", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8"]]
# Three parts; differences; repetitions.
ENTRIES += [
    entry("<u2", equal_pages_up_to=200),
    entry("<i4", delta_spec="try_consecutive", delta_encoding_order=2),
    entry("<u2", delta_spec="try_lookback"),
]
lines = ",\n".join(json.dumps(item, separators=(",", ":")) for item in ENTRIES)
pathlib.Path(__file__).with_name("pcodec.json").write_text(f"[\n{lines}\n]\n")
