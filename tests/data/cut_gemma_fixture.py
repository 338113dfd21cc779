#!/usr/bin/env python3
"""Cuts the golden logits of Gemma 3 270M down to what a repository can hold.

    cut_gemma_fixture.py SOURCE TARGET

SOURCE has, for each prompt i, `tokens.i`, `positions.i`, `logits.i` [positions, vocabulary] and the
greedy continuation `greedy.i` with `margin.i`, the most likely minus the second logit at each step.
TARGET keeps of each position's logits the 64 largest and every 257th: `ids.i` [positions, kept] and
`logits.i` [positions, kept].
"""
import pathlib
import struct
import sys

from cut_model_fixtures import read, write


def main():
    source, target = read(pathlib.Path(sys.argv[1])), {}
    for name, (dtype, shape, data) in source.items():
        kind, _, prompt = name.partition(".")
        if kind in ("tokens", "positions", "greedy", "margin"):
            target[name] = (dtype, shape, data)
        elif kind == "logits":
            positions, vocabulary = shape
            ids, logits = [], []
            for p in range(positions):
                row = struct.unpack_from(f"<{vocabulary}f", data, 4 * p * vocabulary)
                kept = set(range(0, vocabulary, 257))
                for best in sorted(range(vocabulary), key=row.__getitem__, reverse=True)[: 64 + len(kept)]:
                    if len(kept) < 64 + (vocabulary + 256) // 257:
                        kept.add(best)
                ids += sorted(kept)
                logits += [row[i] for i in sorted(kept)]
            shape = [positions, len(ids) // positions]
            target[f"ids.{prompt}"] = ("I32", shape, struct.pack(f"<{len(ids)}i", *ids))
            target[name] = ("F32", shape, struct.pack(f"<{len(logits)}f", *logits))
    write(pathlib.Path(sys.argv[2]), target)


if __name__ == "__main__":
    main()
