#!/usr/bin/env python3
"""Times espalier and llama-bench programs on the same model, in turn, and prints medians and ratios.

  bench/compare_peers.py MODEL.gguf --peer llama.cpp=PATH/llama-bench --peer ik=PATH/llama-bench

Every round runs each program once, so that all see the same changes of the machine's speed. The ratio
is the median over the rounds of ours divided by theirs in the same round.
"""
import argparse
import json
import statistics
import subprocess


def run(command):
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL).stdout)


def time_espalier(binary, options):
    report = run([binary, "bench", "-m", options.model, "-p", str(options.prompt),
                  "-n", str(options.tokens), "-d", str(options.depth),
                  "-t", str(options.threads), "-r", "1", "-o", "json"])
    return {line["test"][:2]: line["median"] for line in report["results"]}, report


def time_peer(binary, options):
    command = [binary, "-m", options.model, "-p", str(options.prompt), "-n", str(options.tokens),
               "-t", str(options.threads), "-r", "1", "-o", "json"]
    if options.depth:
        command += ["-d", str(options.depth)]
    return {"pp" if test["n_prompt"] else "tg": test["avg_ts"] for test in run(command)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--espalier", default="build/release/bin/espalier")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=LLAMA_BENCH")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    peers = dict(peer.split("=", 1) for peer in options.peer)

    ours, theirs, report = [], {name: [] for name in peers}, {}
    for _ in range(options.rounds):
        speeds, report = time_espalier(options.espalier, options)
        ours.append(speeds)
        for name, binary in peers.items():
            theirs[name].append(time_peer(binary, options))

    print(f"{options.model}: {report['weight_bytes'] / 1e6:.1f} MB of weights; "
          f"{report['processor']}, {report['instructions']}, {options.threads} threads; "
          f"memory read at {report['read_bandwidth'] / 1e9:.1f} GB/s; {options.rounds} rounds\n")
    print("| test | program | tokens/s, median | spread | espalier's ratio |")
    print("| --- | --- | ---: | ---: | ---: |")
    for test in ours[0]:
        for name, speeds in [("espalier", ours), *theirs.items()]:
            all_speeds = [speed[test] for speed in speeds]
            ratio = statistics.median(a[test] / b[test] for a, b in zip(ours, speeds))
            print(f"| {test} | {name} | {statistics.median(all_speeds):.1f} | "
                  f"{min(all_speeds):.1f} – {max(all_speeds):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
