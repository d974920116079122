"""Sounds of musical instruments and their names, read from sound fonts, as pictures of spectra.

A sound font holds recordings as plain 16-bit samples, so that nothing but numpy reads them. A
recording that several instruments share belongs to the first alone. Its loop is played, and its
volume falls, as the sound font says; then its log-mel spectrum is drawn, as is usual for audio.
"""

import dataclasses
import functools
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.signal

from pocket import instruments
from pocket.pictures import SIDE, Picture

RATE = 22050
SECONDS = 2.0
WINDOW = 1024
BANDS = SIDE // 2
LOWEST = 40.0  # Hz
RANGE = 80.0  # dB below the loudest that are shown
SHORTEST = 64  # samples
SUSTAIN_LOOP = 1
RIGHT_CHANNEL = 2
# Numbers of the generators of SoundFont 2.04, section 8.1.2.
HOLD, DECAY, SUSTAIN, INSTRUMENT, KEYS, SAMPLE, MODES, ROOT = 35, 36, 37, 41, 43, 53, 54, 58


@dataclasses.dataclass(frozen=True)
class Recording:
    """One recording of an instrument."""

    samples: np.ndarray  # int16
    rate: int  # per second
    loop: tuple[int, int] | None  # first and last sample of what is repeated, or None
    hold: float  # seconds at full volume
    decay: float  # seconds in which the volume would fall by 100 dB
    sustain: float  # dB that it falls at most
    pitch: int  # MIDI key number of the note that was played


@dataclasses.dataclass(frozen=True)
class Zone:
    """What a sound font plays for some keys of a preset."""

    bank: int  # 128 for drum kits
    program: int  # General MIDI number of the instrument, or of the kit
    key: int  # lowest
    sample: int  # number of the recording
    recording: Recording  # itself


def _chunks(data: memoryview, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    while start + 8 <= end:
        (size,) = struct.unpack_from("<I", data, start + 4)
        yield bytes(data[start : start + 4]), start + 8, size
        start += 8 + size + size % 2


def _seconds(timecents: int) -> float:
    signed = (timecents + 2**15) % 2**16 - 2**15
    return 2.0 ** (signed / 1200)


def read_soundfont(path: Path) -> list[Zone]:
    """Zones of all presets by bank and program; of stereo recordings the left channel alone."""
    data = memoryview(path.read_bytes())
    parts = {}
    for name, start, size in _chunks(data, 12, len(data)):
        if name == b"LIST":
            inner = _chunks(data, start + 4, start + size)
            parts |= {key: data[at : at + length] for key, at, length in inner}

    def records(name: bytes, form: str) -> list[tuple]:
        return list(struct.iter_unpack(form, parts[name]))

    headers, bags = records(b"phdr", "<20sHHHIII"), records(b"pbag", "<HH")
    choices = records(b"pgen", "<HH")
    owners, inner_bags = records(b"inst", "<20sH"), records(b"ibag", "<HH")
    settings, recorded = records(b"igen", "<HH"), records(b"shdr", "<20sIIIIIBbHH")
    sound = np.frombuffer(parts[b"smpl"], "<i2")

    def recording(index: int, found: dict[int, int]) -> Recording:
        _, start, end, loop_start, loop_end, rate, pitch, _, _, _ = recorded[index]
        loops = found.get(MODES, 0) & SUSTAIN_LOOP and start <= loop_start < loop_end <= end
        return Recording(
            sound[start:end],
            rate,
            (loop_start - start, loop_end - start) if loops else None,
            _seconds(found.get(HOLD, -12000)),
            _seconds(found.get(DECAY, -12000)),
            found.get(SUSTAIN, 0) / 10,
            found.get(ROOT, pitch),
        )

    zones = []
    for j in sorted(range(len(headers) - 1), key=lambda j: (headers[j][2], headers[j][1])):
        _, program, bank, first, *_ = headers[j]
        for bag in range(first, headers[j + 1][3]):
            chosen = dict(choices[bags[bag][0] : bags[bag + 1][0]])
            if INSTRUMENT not in chosen:
                continue
            common: dict[int, int] = {}
            owner = chosen[INSTRUMENT]
            for inner in range(owners[owner][1], owners[owner + 1][1]):
                found = dict(settings[inner_bags[inner][0] : inner_bags[inner + 1][0]])
                if SAMPLE not in found:
                    common = found  # the zone that holds for all others
                    continue
                found = common | found
                index = found[SAMPLE]
                if recorded[index][9] != RIGHT_CHANNEL:
                    key = found.get(KEYS, 0) & 255
                    zones.append(Zone(bank, program, key, index, recording(index, found)))
    return zones


def read_patch(path: Path) -> list[Recording]:
    """The recordings of a Gravis patch, low notes first."""
    data = path.read_bytes()
    count, at, found = data[198], 239, []
    for _ in range(count):
        size, loop_start, loop_end, rate = struct.unpack_from("<IIIH", data, at + 8)
        (root,) = struct.unpack_from("<I", data, at + 30)
        mode = data[at + 55]
        samples = np.frombuffer(data, "<i2" if mode & 1 else "i1", size // (1 + mode % 2), at + 96)
        if mode & 2:  # unsigned
            samples = samples ^ np.array(1 << 15 if mode & 1 else 1 << 7).astype(samples.dtype)
        loops = mode & 4 and loop_start < loop_end <= size
        loop = (loop_start // (1 + mode % 2), loop_end // (1 + mode % 2)) if loops else None
        pitch = round(69 + 12 * np.log2(max(root, 8000) / 440_000))
        found.append(Recording(samples, rate, loop, 0.0, 100.0, 100.0, pitch))
        at += 96 + size
    return sorted(found, key=lambda recording: recording.pitch)


def play(recording: Recording) -> np.ndarray:
    """Two seconds of a recording at 22,050 samples per second, looped and fading, at most 1."""
    wanted = int(SECONDS * recording.rate)
    index = np.arange(wanted)
    if recording.loop:
        start, end = recording.loop
        index = np.where(index < end, index, start + (index - end) % (end - start))
    heard = np.where(index < len(recording.samples), 1.0, 0.0)
    sound = heard * recording.samples[np.minimum(index, len(recording.samples) - 1)]
    late = np.maximum(np.arange(wanted) / recording.rate - recording.hold, 0)
    fall = np.minimum(100 * late / max(recording.decay, 1e-3), recording.sustain)
    sound = sound * 10 ** (-fall / 20)
    divisor = np.gcd(RATE, recording.rate)
    sound = scipy.signal.resample_poly(sound, RATE // divisor, recording.rate // divisor)
    return sound / max(np.abs(sound).max(), 1e-9)


@functools.cache
def _filters() -> np.ndarray:
    """Triangular mel filters, (bands, frequencies)."""

    def mel(hertz: float) -> float:
        return 2595 * np.log10(1 + hertz / 700)

    edges = 700 * (10 ** (np.linspace(mel(LOWEST), mel(RATE / 2), BANDS + 2) / 2595) - 1)
    frequency = np.fft.rfftfreq(WINDOW, 1 / RATE)
    rise = (frequency - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - frequency) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(rise, fall))


def log_mel(sound: np.ndarray) -> np.ndarray:
    """Log-mel spectrum in [0, 1], (112 bands, 224 moments); 1 is the loudest, 0 is 80 dB below."""
    starts = np.linspace(0, len(sound) - WINDOW, SIDE).astype(int)
    frames = sound[starts[:, None] + np.arange(WINDOW)] * scipy.signal.get_window("hann", WINDOW)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2 @ _filters().T
    decibel = 10 * np.log10(np.maximum(power, 1e-12))
    return np.clip(1 + (decibel - decibel.max()) / RANGE, 0, 1).T


def draw(recording: Recording) -> np.ndarray:
    """The spectrum as a grey picture, low notes below."""
    grey = np.round(255 * log_mel(play(recording))[::-1]).astype(np.uint8)
    return np.repeat(np.repeat(grey, SIDE // BANDS, axis=0)[..., None], 3, axis=2)


def statistics(pixels: np.ndarray) -> np.ndarray:
    """Of each band of a drawn spectrum: mean, deviation and mean change over time, (3 * 112,)."""
    bands = pixels[:: SIDE // BANDS, :, 0].astype(np.float32) / 255
    change = np.abs(np.diff(bands, axis=1)).mean(axis=1)
    return np.concatenate([bands.mean(axis=1), bands.std(axis=1), change])


def register(pitch: int) -> str:
    """How high a note is."""
    return "low notes" if pitch < 48 else "middle notes" if pitch < 72 else "high notes"


def _sound(key: str, recording: Recording, name: str, detail: str, family: str) -> Picture:
    caption = f"{name}, {detail}" if detail else name
    texts = tuple(dict.fromkeys((name, caption)))
    return Picture(key, lambda: draw(recording), texts, (family, "musical instrument"))


def _spread(count: int, most: int) -> list[int]:
    """At most so many of `count` rows, evenly taken from within."""
    if not count:
        return []
    return np.unique(np.linspace(0, count - 1, most + 2)[1:-1].round().astype(int)).tolist()


def soundfont(path: Path, most: int) -> list[Picture]:
    """Sounds of a General MIDI sound font: each instrument in each register, drums in each kit.

    Args:
      path: of the ``.sf2`` file.
      most: sounds of one name and register, or kit.
    """
    used: set[int] = set()
    groups: dict[tuple[str, str, str], list[Zone]] = {}
    for zone in read_soundfont(path):
        if zone.sample in used or len(zone.recording.samples) < SHORTEST:
            continue
        if zone.bank == 128:
            name, family = instruments.DRUMS.get(zone.key, ""), "drums and percussion"
            detail = instruments.KITS.get(zone.program, "")
        elif zone.bank == 0:
            name, family = instruments.name(zone.program), instruments.family(zone.program)
            detail = "" if zone.program >= 112 else register(zone.recording.pitch)
        else:
            continue
        if name:
            used.add(zone.sample)
            groups.setdefault((name, detail, family), []).append(zone)
    found = []
    for (name, detail, family), zones in groups.items():
        zones = sorted(zones, key=lambda z: (z.recording.pitch, z.sample))
        found += [
            _sound(f"{zones[i].sample}", zones[i].recording, name, detail, family)
            for i in _spread(len(zones), most)
        ]
    return found


def patches(folder: Path, most: int) -> list[Picture]:
    """Sounds of a folder of Gravis patches, at most so many of each file."""
    found = []
    for path in sorted(folder.rglob("*.pat")):
        number = int(path.name[:3])
        drum = path.parent.name.startswith("Drum")
        name = instruments.DRUMS.get(number, "") if drum else instruments.name(number)
        if not name or not re.match(r"\d{3}_", path.name):
            continue
        family = "drums and percussion" if drum else instruments.family(number)
        recordings = [r for r in read_patch(path) if len(r.samples) >= SHORTEST]
        for i in _spread(len(recordings), most):
            detail = "" if drum or number >= 112 else register(recordings[i].pitch)
            found.append(_sound(f"{path.name}-{i}", recordings[i], name, detail, family))
    return found
