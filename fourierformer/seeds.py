"""Seeds computed from their purpose, so that no state of a generator has to be kept in a checkpoint."""

import hashlib


def seed_of(*parts: object) -> int:
    """A 63-bit seed for a purpose, such as ("rfa", seed, layer): torch takes a signed 64-bit one. A hash, the same on
    every machine and version, unlike Python's hash()."""
    text = " ".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
