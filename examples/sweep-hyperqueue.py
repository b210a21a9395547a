#!/usr/bin/env python3
"""Runs a sweep in shards on HyperQueue's workers, and merges their files.

    pip install hyperqueue
    examples/sweep-hyperqueue.py --shards 16 --workers 4 --out all.csv -- \\
        napkin sweep memcached --vary policy=base,suspend20 --vary load=200k,600k --vary seed=1..50

It starts a server and workers on this machine (LocalCluster). On a cluster start them there (hq server
start, hq alloc add slurm) and give the server's directory: --server DIRECTORY. HyperQueue runs a shard
whose worker is lost on another one; shards that were killed themselves are submitted again here, three
times at most. --resume takes up the points that are there already. All workers must see the folder of
the parts.
"""

import argparse
import pathlib
import subprocess
import sys

from hyperqueue import Client, Job, LocalCluster
from hyperqueue.cluster import WorkerConfig


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shards", type=int, default=16, help="parts of the sweep (16)")
    parser.add_argument("--workers", type=int, default=4, help="workers to start here (4)")
    parser.add_argument("--server", type=pathlib.Path, help="a running server's directory; no worker is started")
    parser.add_argument("--parts", type=pathlib.Path, default=pathlib.Path("parts"), help="folder of the parts (parts)")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the merged file")
    parser.add_argument("sweep", nargs="+", metavar="napkin sweep ...", help="the sweep, without --out")
    args = parser.parse_args()

    if args.server:
        submit(Client(args.server), args)
    else:
        with LocalCluster() as cluster:
            for _ in range(args.workers):
                cluster.start_worker(WorkerConfig(cores=1))
            submit(cluster.client(), args)

    napkin = args.sweep[0]
    parts = [part_of(args, shard) for shard in range(1, args.shards + 1)]
    merge = [napkin, "sweep", "merge", *map(str, parts), "--out", str(args.out)]
    return subprocess.run(merge, check=False).returncode


def part_of(args, shard):
    return (args.parts / f"{shard}.csv").resolve()


def submit(client, args):
    """A task for each shard, of one CPU, until all have ended well."""
    args.parts.mkdir(parents=True, exist_ok=True)
    for _ in range(3):
        # A finished shard ends at once.
        job = client.submit(job_of(args))
        if client.wait_for_jobs([job], raise_on_error=False):
            return
        print("some shards did not end well, and are submitted again", file=sys.stderr)


def job_of(args):
    # One shard that fails must not end the others.
    job = Job(max_fails=None)
    for shard in range(1, args.shards + 1):
        part = part_of(args, shard)
        job.program(
            [*args.sweep, "--shard", f"{shard}/{args.shards}", "--out", str(part), "--jobs", "1", "--quiet", "--resume"],
            name=f"shard {shard}",
            stdout=part.with_suffix(".out"),
            stderr=part.with_suffix(".err"),
        )
    return job


if __name__ == "__main__":
    sys.exit(main())
