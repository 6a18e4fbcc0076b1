"""A process and its forked children hash shared memory and write to it; prints the hashes."""

import hashlib
import os
import random

draw = random.Random(1)
texts = [bytearray(draw.randbytes(1000) * 1049) for _ in range(60)]


def digest() -> str:
    """The hash of all texts."""
    whole = hashlib.sha256()
    for text in texts:
        whole.update(text)
    return whole.hexdigest()


for number in range(4):
    print("parent", digest(), flush=True)
    child = os.fork()
    # Write bytes a page apart: 8 in the child, 7 in the parent.
    for text in texts[number::4]:
        text[number::4096] = bytes([7 + (child == 0)]) * len(text[number::4096])
    if child == 0:
        print("child", digest(), flush=True)
        os._exit(0)
    own = digest()
    if os.waitpid(child, 0)[1]:
        raise SystemExit("a child failed")
    print("after", own, flush=True)
