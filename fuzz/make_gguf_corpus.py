#!/usr/bin/env python3
"""Writes the seeds of gguf_fuzz: small right GGUF files, each with something the others lack.

    fuzz/make_gguf_corpus.py [FOLDER]      by default fuzz/corpus/gguf beside this script
"""
import pathlib
import struct
import sys

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

# Block formats by ggml's number: values and bytes of a block.
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
    22: (256, 82), 23: (256, 136), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66),
    39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18),
}


def text(value):
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(kind, content):
    if kind == STRING:
        return text(content)
    if kind == ARRAY:
        element, items = content
        return struct.pack("<IQ", element, len(items)) + b"".join(value(element, i) for i in items)
    return struct.pack("<" + SCALARS[kind], content)


def gguf(keys, tensors=(), version=3, alignment=32):
    """keys: (name, type, content); tensors: (name, dims with the fastest first, type, bytes)."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for name, kind, content in keys:
        out += text(name) + struct.pack("<I", kind) + value(kind, content)
    data = b""
    for name, dims, kind, raw in tensors:
        data += b"\0" * (-len(data) % alignment)
        out += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        out += struct.pack("<IQ", kind, len(data))
        data += raw
    return out + (b"\0" * (-len(out) % alignment) + data if data else b"")


def blocks(kind, count):
    """`count` blocks of bytes that differ."""
    size = BLOCKS[kind][1] * count
    return bytes((i * 37 + kind) % 251 for i in range(size))


def main():
    folder = pathlib.Path(__file__).resolve().parent / "corpus" / "gguf"
    if len(sys.argv) > 1:
        folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    scalars = [(f"scalar.{kind}", kind, 1) for kind in sorted(SCALARS)]
    arrays = [(f"array.{kind}", ARRAY, (kind, [0, 1, 1])) for kind in sorted(SCALARS)]
    nested = (ARRAY, [(UINT32, [1, 2]), (STRING, ["a"]), (ARRAY, [(BOOL, [True]), (BOOL, [])])])
    vocabulary = [
        ("general.architecture", STRING, "llama"),
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, ["<s>", "a", "b", "ab", "Ġ", "é"])),
        ("tokenizer.ggml.merges", ARRAY, (STRING, ["a b"])),
        ("tokenizer.ggml.token_type", ARRAY, (INT32, [3, 1, 1, 1, 1, 1])),
        ("tokenizer.ggml.scores", ARRAY, (FLOAT32, [0.0, -1.0, -2.0, -3.0, -4.0, -5.0])),
    ]
    seeds = {
        "empty": gguf([]),
        "scalars": gguf(scalars),
        "arrays": gguf(arrays + [("array.empty", ARRAY, (STRING, []))]),
        "nested": gguf([("nested", ARRAY, nested)]),
        "strings": gguf([("escaped", STRING, "\x1b[2J\n\\"), ("not utf-8", STRING, b"\xff\xc0\x80")]),
        "vocabulary": gguf(vocabulary),
        "version2": gguf(vocabulary, [("x", [4], 0, bytes(16))], version=2),
        "alignment": gguf([("general.alignment", UINT32, 8)],
                          [("x", [3], 0, bytes(12)), ("y", [1], 0, bytes(4))], alignment=8),
        "dims": gguf([], [("a", [2, 3, 1, 2], 0, bytes(48)), ("b", [1], 1, bytes(2)),
                          ("c", [32, 2], 3, blocks(3, 2))]),
        "split": gguf([("split.no", 2, 0), ("split.count", 2, 2), ("split.tensors.count", INT32, 1)]),
    }
    for kind, (values, _) in BLOCKS.items():
        seeds[f"type{kind}"] = gguf([], [("w", [values, 2], kind, blocks(kind, 2))])
    for name, raw in seeds.items():
        (folder / name).write_bytes(raw)


if __name__ == "__main__":
    main()
