"""What does one epoch of a task of ImageNet's shape take, in time and memory?

    python benchmarks/imagenet_task.py --folder FOLDER
    python benchmarks/imagenet_task.py --folder FOLDER --device-memory 256
    python benchmarks/imagenet_task.py --short

Makes 1,281,167 x 512 features in float16 on disk (1.3 GB, random points around 1,000 prototypes;
kept in FOLDER for the next time) and learns one epoch with one seed: by default with features on
the device, with a smaller --device-memory in chunks from the memory-mapped file. Prints seconds
and the peak of resident memory, mapped pages of the file included.
"""

import argparse
import contextlib
import tempfile
import time
from pathlib import Path

import numpy as np

from hmcl_jax.continual import Schedule, TrainConfig, make_method
from hmcl_jax.data.store import Task
from stage import Stage
from timing import peak_mib, print_json, print_table


def make_features(folder: Path, samples: int, classes: int, dim: int) -> Task:
    """A task whose features are mapped from a file, written once."""
    rng = np.random.default_rng(0)
    prototypes = rng.normal(size=(classes, dim)).astype(np.float32) / np.sqrt(dim)
    labels = rng.integers(0, classes, samples).astype(np.int32)
    path = folder / f"features-{samples}-{dim}.npy"
    if not path.exists():
        partial = path.with_suffix(".partial")  # an interrupted file is made again
        shape = (samples, dim)
        array = np.lib.format.open_memmap(partial, "w+", np.float16, shape)
        for start in range(0, samples, 16384):  # never all of it in memory
            part = labels[start : start + 16384]
            noise = rng.standard_normal((len(part), dim), np.float32) / np.sqrt(dim)
            array[start : start + 16384] = 2 * prototypes[part] + noise
        array.flush()
        partial.replace(path)
    features = np.load(path, mmap_mode="r", allow_pickle=False)
    arrays = {"prototypes": prototypes, "train_features": features, "train_labels": labels}
    names = tuple(f"class {i}" for i in range(classes))
    return Task("imagenet", "classification", "text", "image", arrays, classes=names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, help="for the features, 1.3 GB; else they go after")
    parser.add_argument("--device-memory", type=float, default=2048.0, metavar="MIB")
    parser.add_argument("--method", default="hmcl_ca")
    parser.add_argument("--samples", type=int, default=1_281_167)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--short", action="store_true", help="1 %% of the samples, in chunks")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.samples, arguments.device_memory = arguments.samples // 100, 8.0
    temporary = tempfile.TemporaryDirectory()
    with contextlib.nullcontext(arguments.folder) if arguments.folder else temporary as folder:
        measure(arguments, Path(folder))


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Learns the task and prints what it took."""
    folder.mkdir(parents=True, exist_ok=True)
    task = make_features(folder, arguments.samples, arguments.classes, 512)
    config = TrainConfig(classification=Schedule(1, 5e-4), device_memory=arguments.device_memory)
    stage = Stage(make_method(arguments.method), config, 512)
    start = time.perf_counter()
    losses = stage.learn(task)[1].losses
    seconds = time.perf_counter() - start
    rate = arguments.samples / seconds
    print_table(
        ["samples", "device memory (MiB)", "s, with compilation", "samples / s", "peak (GiB)"],
        [[arguments.samples, arguments.device_memory, seconds, rate, peak_mib() / 1024]],
    )
    taken = {"seconds_with_compilation": seconds, "peak_resident_gib": peak_mib() / 1024}
    print_json(
        "imagenet_task", **{**vars(arguments), "folder": None, **taken, "loss": float(losses[0, 0])}
    )


if __name__ == "__main__":
    main()
