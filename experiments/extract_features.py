"""Pictures and texts, or features of another encoder, through a frozen backbone into a store.

    python experiments/convert_checkpoint.py meru_vit_b.pth meru-b --name meru-b/redcaps
    python experiments/extract_features.py --backbone meru-b --out store \\
      --task DATA/cifar10 --task birds=DATA/cub --task sound=DATA/esc50
    python experiments/extract_features.py --backbone meru-b --out store --suite hmcl16 --root DATA
    python experiments/run_stream.py --stream store --out runs/mine

A task is a folder: pictures by class, a CSV or JSONL table, COCO or Karpathy captions, tar shards,
Parquet or Arrow files, a data set of the Hugging Face hub (hf:NAME), or arrays of features from
another encoder (see hmcl_jax/data/image_datasets.py). A stopped extraction continues with --resume
and ends with the same bytes. Nothing is overwritten.
"""

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from hmcl_jax.backbones.backbone import load_backbone
from hmcl_jax.backbones.convert import CheckpointError
from hmcl_jax.backbones.extract import ExtractError, Options, Source, extract_store
from hmcl_jax.backbones.images import PictureError
from hmcl_jax.continual.cache import keep_programs
from hmcl_jax.data.errors import IngestError, StoreError
from hmcl_jax.data.feature_arrays import read_features
from hmcl_jax.data.image_datasets import open_collection, recognise
from hmcl_jax.data.store import read_store
from hmcl_jax.data.suites import ORDERS, SUITES, open_expected
from hmcl_jax.report.progress import ExtractView


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", required=True, help="folder that convert_checkpoint made")
    parser.add_argument("--out", required=True, help="the store: a new folder, or a .zip file")
    parser.add_argument("--resume", action="store_true", help="continue from OUT.partial")
    parser.add_argument("--name", help="of the stream; the suite's name or 'stream' if not given")
    tasks = parser.add_argument_group("tasks")
    tasks.add_argument("--suite", choices=sorted(SUITES), help="the data sets of a benchmark")
    tasks.add_argument("--root", help="folder with a folder for every data set of the suite")
    tasks.add_argument("--only", help="of the suite, names with commas; then its orders shrink")
    tasks.add_argument(
        "--task",
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="a folder; may be given several times",
    )
    tasks.add_argument("--links", action="store_true", help="follow links that leave the folders")
    tasks.add_argument(
        "--prompt",
        action="append",
        metavar="TEXT",
        help="such as 'a photo of a {}.', instead of those that tasks bring; may be repeated",
    )
    how = parser.add_argument_group("how")
    how.add_argument("--batch", type=int, default=Options.batch)
    how.add_argument("--shard", type=int, default=Options.shard, help="batches per shard")
    how.add_argument("--dtype", default=Options.dtype, help="of the store: float16 or float32")
    how.add_argument(
        "--compute", default="float32", choices=["float32", "bfloat16"], help="of the towers"
    )
    how.add_argument("--on-error", default=Options.on_error, help="raise, or skip bad pictures")
    how.add_argument("--upright", action="store_true", help="turn pictures as their EXIF data says")
    how.add_argument("--workers", type=int, default=Options.workers, help="threads that decode")
    how.add_argument("--thumbnails", type=int, default=0, help="small test pictures per task")
    return parser.parse_args()


def _named(text: str) -> tuple[str | None, str]:
    """Name and path; a folder that has = in its own path needs no name."""
    name, equals, path = text.partition("=")
    if not text or (equals and not path):
        raise IngestError(f"--task must be [NAME=]PATH, got {text!r}.")
    return (name, path) if equals and not Path(text).is_dir() else (None, text)


def open_sources(
    arguments: argparse.Namespace, K: float
) -> tuple[list[Source], dict[str, tuple[str, ...]]]:
    """The tasks that are asked for, in order, and other orders of them."""
    sources: list[Source] = []
    orders: dict[str, tuple[str, ...]] = {}
    if (arguments.suite is None) != (arguments.root is None):
        raise IngestError("--suite and --root must be given together.")
    if arguments.only and not arguments.suite:
        raise IngestError("--only chooses from a suite; give --suite, too.")
    if arguments.suite:
        expected = {entry.name: entry for entry in SUITES[arguments.suite]}
        if arguments.prompt:
            raise IngestError("--prompt is for --task; the data sets of a suite have their own.")
        chosen = list(expected)
        if arguments.only:
            chosen = [name.strip() for name in arguments.only.split(",")]
        unknown = sorted(set(chosen).difference(expected))
        if unknown:
            raise IngestError(f"--only: {unknown[0]!r} is not one of {', '.join(expected)}.")
        for name, entry in expected.items():
            if name in chosen:
                sources.append(open_expected(arguments.root, entry, links=arguments.links))
        if not arguments.task:
            for key, order in ORDERS[arguments.suite].items():
                orders[key] = tuple(name for name in order if name in chosen)
    prompts = tuple(arguments.prompt) if arguments.prompt else None
    for text in arguments.task:
        name, path = _named(text)
        if recognise(path) == "features":
            sources.append(read_features(path, name, prompts=prompts, usual_K=K))
        else:
            opened = open_collection(path, name, prompts=prompts, links=arguments.links)
            sources.append(opened)
    if not sources:
        raise IngestError("No tasks: give --task or --suite.")
    return sources, orders


def main() -> None:
    arguments = parse()
    keep_programs(True)
    start = time.perf_counter()
    try:
        options = Options(
            batch=arguments.batch,
            shard=arguments.shard,
            dtype=arguments.dtype,
            on_error=arguments.on_error,
            upright=arguments.upright,
            workers=arguments.workers,
            thumbnails=arguments.thumbnails,
            resume=arguments.resume,
        )
        backbone = load_backbone(arguments.backbone, arguments.compute, batch=options.batch)
        sources, orders = open_sources(arguments, backbone.K)
        with ExtractView(Console(file=sys.stdout)) as view:
            extract_store(
                arguments.out,
                sources,
                backbone,
                name=arguments.name or arguments.suite or "stream",
                options=options,
                orders=orders,
                listener=view,
            )
        store = read_store(arguments.out, verify=False)
    except (
        *(CheckpointError, ExtractError, IngestError, PictureError, StoreError),
        *(ImportError, FloatingPointError, OSError),
    ) as error:
        sys.exit(f"extract_features: {error}")
    except KeyboardInterrupt:
        print("\nextract_features: stopped; continue with --resume.", file=sys.stderr)
        sys.exit(130)
    print(f"\n{store.describe()}")
    for task in store:
        for split in ("train", "test"):
            if note := task.provenance.get(f"skipped_{split}"):
                print(f"{task.name}, {split}: skipped {note}")
    print(f"{time.perf_counter() - start:.0f} s, wrote {Path(arguments.out)}")


if __name__ == "__main__":
    main()
