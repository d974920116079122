r"""Encodes pictures and texts, or features of another encoder, into a store.

  hmcl convert meru_vit_b.pth meru-b --name meru-b/redcaps
  hmcl extract --backbone meru-b --out store \
      --task DATA/cifar10 --task birds=DATA/cub --task sound=DATA/esc50
  hmcl extract --backbone meru-b --out store --suite hmcl16 --root DATA
  hmcl run --stream store --out runs/mine

A task is a folder: pictures by class, a CSV or JSONL table, COCO or Karpathy captions, tar shards,
Parquet or Arrow files, a data set of the Hugging Face hub (hf:NAME), or arrays of features from
another encoder (see hmcl_jax/data/image_datasets.py). An interrupted extraction continues with
--resume and ends with the same bytes. Nothing is overwritten.
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from rich.console import Console

from hmcl_jax.backbones.backbone import load_backbone
from hmcl_jax.backbones.extract import Options, Source, extract_store
from hmcl_jax.cli.options import add_cache, names, prepare_jax
from hmcl_jax.cli.progress import ExtractView
from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.feature_arrays import read_features
from hmcl_jax.data.image_datasets import open_collection, recognise
from hmcl_jax.data.store import read_store
from hmcl_jax.data.suites import ORDERS, SUITES, open_expected


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backbone", required=True, help="a folder of `hmcl convert`")
    parser.add_argument("--out", required=True, help="the store: a new folder, or a .zip file")
    parser.add_argument("--resume", action="store_true", help="continue in OUT.partial")
    parser.add_argument("--name", help="of the stream; default: the suite's name, or 'stream'")
    tasks = parser.add_argument_group("tasks")
    tasks.add_argument("--suite", choices=sorted(SUITES), help="the data sets of a benchmark")
    tasks.add_argument("--root", help="folder with a folder for every data set of the suite")
    tasks.add_argument("--only", type=names, help="some of the suite, with commas")
    tasks.add_argument(
        "--task", action="append", default=[], metavar="[NAME=]PATH", help="a folder; repeatable"
    )
    tasks.add_argument("--links", action="store_true", help="follow links that leave the folders")
    prompt = "such as 'a photo of a {}.', not those that tasks bring; repeatable"
    tasks.add_argument("--prompt", action="append", metavar="TEXT", help=prompt)
    how = parser.add_argument_group("how")
    how.add_argument("--batch", type=int, default=Options.batch)
    how.add_argument("--shard", type=int, default=Options.shard, help="batches per shard")
    how.add_argument("--dtype", default=Options.dtype, help="of the store: float16 or float32")
    how.add_argument("--compute", default="float32", choices=("float32", "bfloat16"))
    how.add_argument("--on-error", default=Options.on_error, help="raise, or skip bad pictures")
    how.add_argument("--upright", action="store_true", help="turn pictures as their EXIF data says")
    how.add_argument("--workers", type=int, default=Options.workers, help="threads that decode")
    how.add_argument("--thumbnails", type=int, default=0, help="small test pictures per task")
    add_cache(parser)


def run(options: argparse.Namespace) -> None:
    prepare_jax(options)
    start = time.perf_counter()
    fields = dataclasses.fields(Options)
    settings = Options(**{field.name: getattr(options, field.name) for field in fields})
    backbone = load_backbone(options.backbone, options.compute, batch=settings.batch)
    sources, orders = open_sources(options, backbone.K)
    with ExtractView(Console(file=sys.stdout)) as view:
        extract_store(
            options.out,
            sources,
            backbone,
            name=options.name or options.suite or "stream",
            options=settings,
            orders=orders,
            listener=view,
        )
    store = read_store(options.out, verify=False)
    print(f"\n{store.describe()}")
    for task in store:
        for split in ("train", "test"):
            if note := task.provenance.get(f"skipped_{split}"):
                print(f"{task.name}, {split}: skipped {note}")
    print(f"{time.perf_counter() - start:.0f} s, wrote {Path(options.out)}")


def open_sources(
    options: argparse.Namespace, K: float
) -> tuple[list[Source], dict[str, tuple[str, ...]]]:
    """The tasks that the options name, in order, and other orders of them."""
    if (options.suite is None) != (options.root is None):
        raise IngestError("--suite and --root must be given together.")
    if options.only and not options.suite:
        raise IngestError("--only chooses from a suite; give --suite, too.")
    if options.suite and options.prompt:
        raise IngestError("--prompt is for --task; the data sets of a suite have their own.")
    sources: list[Source] = []
    orders: dict[str, tuple[str, ...]] = {}
    if options.suite:
        known = {entry.name: entry for entry in SUITES[options.suite]}
        chosen = options.only or list(known)
        if unknown := sorted(set(chosen).difference(known)):
            raise IngestError(f"--only: {unknown[0]!r} is not one of {', '.join(known)}.")
        for name in (name for name in known if name in chosen):
            sources.append(open_expected(options.root, known[name], links=options.links))
        if not options.task:  # an order names all tasks, and those of --task have no place in it
            for key, order in ORDERS[options.suite].items():
                orders[key] = tuple(name for name in order if name in chosen)
    prompts = tuple(options.prompt) if options.prompt else None
    for text in options.task:
        before, equals, path = text.partition("=")
        if not text or (equals and not path):
            raise IngestError(f"--task must be [NAME=]PATH, got {text!r}.")
        # A folder with = in its path needs no name.
        named = equals and not Path(text).is_dir()
        task, path = (before, path) if named else (None, text)
        if recognise(path) == "features":
            sources.append(read_features(path, task, prompts=prompts, usual_K=K))
        else:
            sources.append(open_collection(path, task, prompts=prompts, links=options.links))
    if not sources:
        raise IngestError("No tasks: give --task or --suite.")
    return sources, orders
