#!/usr/bin/env python3
"""Cuts small model directories out of larger ones, with their golden logits.

    cut_model_fixtures.py SOURCE TARGET [POSITIONS]

SOURCE is a Hugging Face directory with golden.safetensors (`tokens` [batch, positions] and `logits`
[batch, positions, vocabulary]). TARGET gets the same model with only the tokens of the first
POSITIONS positions of the first text left in its vocabulary: rows of the embedding and the head are
dropped, nothing else changes, so the logits that remain are the same numbers.
"""
import json
import pathlib
import struct
import sys


def read(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {k: [v["dtype"], v["shape"], body[slice(*v["data_offsets"])]] for k, v in header.items()}


def write(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def rows(tensor, wanted):
    dtype, shape, data = tensor
    size = len(data) // shape[0]
    kept = b"".join(data[row * size : (row + 1) * size] for row in wanted)
    return [dtype, [len(wanted), *shape[1:]], kept]


def main():
    source, target = map(pathlib.Path, sys.argv[1:3])
    positions = int(sys.argv[3]) if len(sys.argv) > 3 else 24
    golden = read(source / "golden.safetensors")
    tokens = struct.unpack(f"<{positions}i", golden["tokens"][2][: 4 * positions])
    vocabulary = sorted(set(tokens))
    vocab_size = golden["logits"][1][2]
    all_logits = struct.unpack(f"<{positions * vocab_size}f", golden["logits"][2][: 4 * positions * vocab_size])

    tensors = read(source / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = rows(tensors[name], vocabulary)
    config = json.loads((source / "config.json").read_text())
    config["vocab_size"] = len(vocabulary)

    target.mkdir(parents=True, exist_ok=True)
    write(target / "model.safetensors", tensors)
    (target / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    cut = [vocabulary.index(token) for token in tokens]
    logits = [all_logits[p * vocab_size + token] for p in range(positions) for token in vocabulary]
    write(
        target / "golden.st",
        {
            "tokens": ["I32", [positions], struct.pack(f"<{positions}i", *cut)],
            "logits": ["F32", [positions, len(vocabulary)], struct.pack(f"<{len(logits)}f", *logits)],
        },
    )


if __name__ == "__main__":
    main()
