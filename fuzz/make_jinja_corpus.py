#!/usr/bin/env python3
"""Writes the seeds of jinja_fuzz from the test data: every snippet of the language, and the shorter templates of
models. Needs the zstd command.

    fuzz/make_jinja_corpus.py [FOLDER]      by default fuzz/corpus beside this script
"""
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "tests" / "data" / "templates"
LONGEST_TEMPLATE = 3000


def lines(name):
    text = subprocess.run(["zstd", "-dc", DATA / f"{name}.jsonl.zst"], check=True, capture_output=True).stdout
    return [json.loads(line) for line in text.decode().rstrip("\n").split("\n")]


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "corpus") / "jinja"
    folder.mkdir(parents=True, exist_ok=True)
    for i, snippet in enumerate(lines("snippets")):
        context = json.dumps(snippet["context"], ensure_ascii=False) if snippet["context"] else ""
        seed = snippet["template"] + ("\0" + context if context else "")
        (folder / f"{snippet['group']}{i}").write_bytes(seed.encode())
    for template in lines("templates"):
        source = template["source"].encode()
        if len(source) <= LONGEST_TEMPLATE:
            (folder / template["name"]).write_bytes(source)


main()
