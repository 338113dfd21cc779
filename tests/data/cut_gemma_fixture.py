#!/usr/bin/env python3
"""Cuts the golden logits of Gemma 3 270M down to what a repository can hold.

    cut_gemma_fixture.py SOURCE TARGET

SOURCE has, for each prompt i, `tokens.i`, `positions.i`, `logits.i` [positions, vocabulary] and the
greedy continuation `greedy.i` with `margin.i`, the most likely minus the second logit at each step.
TARGET keeps of each position's logits the 64 largest and every 257th: `ids.i` [positions, kept] and
`logits.i` [positions, kept].
"""
import json
import pathlib
import struct
import sys


def read(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    return {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


def write(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


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


main()
