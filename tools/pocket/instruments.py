"""Names of the instruments of General MIDI, by program, and of its drums, by key."""

import tomllib
from pathlib import Path

_TABLE = tomllib.loads((Path(__file__).parent / "instruments.toml").read_text("utf8"))
_NAMES = [(name, family) for family, names in _TABLE["families"].items() for name in names]
KITS = {program: kit for kit, programs in _TABLE["kits"].items() for program in programs}
DRUMS = dict(enumerate(_TABLE["drums"], 35))


def name(program: int) -> str:
    """Of a General MIDI program, 0 to 127."""
    return _NAMES[program][0]


def family(program: int) -> str:
    """Of a General MIDI program, 0 to 127."""
    return _NAMES[program][1]
