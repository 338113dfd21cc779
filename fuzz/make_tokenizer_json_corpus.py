#!/usr/bin/env python3
"""Writes the seeds of tokenizer_json_fuzz: a document with each kind of step, and a text for it.

    fuzz/make_tokenizer_json_corpus.py [FOLDER]     by default fuzz/corpus/tokenizer_json
"""
import base64
import json
import pathlib
import struct
import sys

TEXT = "<s>a ab\u00e9 12 \u4e2d<tag>  bA,b".encode()

ADDED = [
    {"id": 0, "content": "<s>", "special": True},
    {"id": 1, "content": "<tag>", "lstrip": True, "rstrip": True, "single_word": True},
    {"id": 2, "content": "<n>", "special": True, "normalized": True},
]
BPE = {"type": "BPE", "unk_token": "<s>", "fuse_unk": True,
       "vocab": {"<s>": 0, "a": 3, "b": 4, "ab": 5, "\u0120": 6, "\u2581": 7, "<0xC3>": 8},
       "merges": ["a b"]}
UNIGRAM = {"type": "Unigram", "unk_id": 0, "byte_fallback": True,
           "vocab": [["<s>", 0], ["<tag>", 0], ["<n>", 0], ["a", -1.5], ["ab", -2], ["\u2581", -3],
                     ["<0xC3>", -4], ["<0xA9>", -4]]}


def charsmap():
    units = [0] * 1024
    units[0] = 0x100 << 10
    place = 0x100 ^ ord("a")
    units[place] = ord("a") | 1 << 8 | (place ^ 0x200) << 10
    units[0x200] = 0x80000000
    return base64.b64encode(struct.pack("<1025I", 4096, *units) + b"xy\0").decode()


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


NORMALIZERS = {
    "forms": [{"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")],
    "replace": [{"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "-"},
                {"type": "Strip", "strip_left": True, "strip_right": True}],
    "charsmap": [{"type": "Precompiled", "precompiled_charsmap": charsmap()}],
}
PRE_TOKENIZERS = {
    "splits": [split("\\s", "Removed"), split("[\\p{L}&&[^ab]]+", "MergedWithNext"),
               split("a{1,3}+|(?=[A-Z])", "MergedWithPrevious"), split("\\w+", "Contiguous", True)],
    "kinds": [{"type": "Digits", "individual_digits": True}, {"type": "Punctuation"},
              {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"},
              {"type": "CharDelimiterSplit", "delimiter": ","}],
    "metaspace": [{"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first",
                   "split": True}],
    "bytes": [{"type": "ByteLevel", "add_prefix_space": True, "use_regex": True},
              {"type": "Digits", "individual_digits": False}],
}
DECODERS = {
    "llama": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
              {"type": "ByteFallback"}, {"type": "Fuse"},
              {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
    "bytes": [{"type": "ByteLevel"}],
    "metaspace": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "\u2581"}],
}
POST = {"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}


def document(model, normalizer=None, pre_tokenizer=None, decoder=None):
    def sequence(key, steps):
        return steps and {"type": "Sequence", key: steps}

    return {"added_tokens": ADDED, "model": model, "post_processor": POST,
            "normalizer": sequence("normalizers", normalizer),
            "pre_tokenizer": sequence("pretokenizers", pre_tokenizer),
            "decoder": sequence("decoders", decoder)}


def main():
    folder = pathlib.Path(__file__).resolve().parent / "corpus" / "tokenizer_json"
    if len(sys.argv) > 1:
        folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    seeds = {"bpe": document(BPE), "unigram": document(UNIGRAM)}
    for name, steps in NORMALIZERS.items():
        seeds[f"normalizer-{name}"] = document(BPE, normalizer=steps)
    for name, steps in PRE_TOKENIZERS.items():
        seeds[f"pre-{name}"] = document(BPE, pre_tokenizer=steps)
    for name, steps in DECODERS.items():
        seeds[f"decoder-{name}"] = document(UNIGRAM, decoder=steps)
    for name, seed in seeds.items():
        (folder / name).write_bytes(json.dumps(seed).encode() + b"\xff" + TEXT)


if __name__ == "__main__":
    main()
