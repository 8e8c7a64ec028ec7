"""Seeds that follow from what they are for, so that randomness needs no state: nothing to save, the same on every
machine."""

import hashlib


def seed_of(*parts: object) -> int:
    """A 63-bit hash (torch takes a signed 64-bit seed). The same on every machine and version, unlike Python's
    hash()."""
    text = " ".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
