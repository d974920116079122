"""Names of the instruments of General MIDI, by program, and of its drums, by key."""

FAMILIES = {
    "piano": """acoustic grand piano, bright acoustic piano, electric grand piano, honky-tonk piano,
        electric piano, chorused electric piano, harpsichord, clavinet""",
    "chromatic percussion": """celesta, glockenspiel, music box, vibraphone, marimba, xylophone,
        tubular bells, dulcimer""",
    "organ": """drawbar organ, percussive organ, rock organ, church organ, reed organ, accordion,
        harmonica, tango accordion""",
    "guitar": """nylon string guitar, steel string guitar, jazz guitar, clean electric guitar,
        muted electric guitar, overdriven guitar, distortion guitar, guitar harmonics""",
    "bass": """acoustic bass, fingered electric bass, picked electric bass, fretless bass,
        slap bass, pop bass, synthesizer bass, rubber synthesizer bass""",
    "strings": """violin, viola, cello, contrabass, tremolo strings, pizzicato strings,
        orchestral harp, timpani""",
    "ensemble": """string ensemble, slow string ensemble, synthesizer strings,
        soft synthesizer strings, choir singing aah, voices singing ooh, synthesizer voice,
        orchestra hit""",
    "brass": """trumpet, trombone, tuba, muted trumpet, french horn, brass section,
        synthesizer brass, soft synthesizer brass""",
    "reed": """soprano saxophone, alto saxophone, tenor saxophone, baritone saxophone, oboe,
        english horn, bassoon, clarinet""",
    "pipe": """piccolo, flute, recorder, pan flute, blown bottle, shakuhachi, whistle, ocarina""",
    "synthesizer lead": """square wave lead, sawtooth wave lead, calliope lead, chiffer lead,
        charang lead, solo voice lead, sawtooth lead in fifths, bass and lead""",
    "synthesizer pad": """fantasia pad, warm pad, polysynth pad, space voice pad, bowed glass pad,
        metallic pad, halo pad, sweep pad""",
    "synthesizer effect": """ice rain, soundtrack, crystal, atmosphere, brightness, goblins,
        echo drops, star theme""",
    "ethnic instrument": """sitar, banjo, shamisen, koto, kalimba, bagpipe, fiddle, shanai""",
    "percussive instrument": """tinkle bell, agogo, steel drums, woodblock, taiko drum,
        melodic tom, synthesizer drum, reverse cymbal""",
    "sound effect": """guitar fret noise, breath noise, seashore, bird tweet, telephone ring,
        helicopter, applause, gunshot""",
}
_NAMES = [
    (" ".join(name.split()), family)
    for family, names in FAMILIES.items()
    for name in names.split(",")
]

KITS = {
    **dict.fromkeys(range(8), "standard kit"),
    **dict.fromkeys(range(8, 16), "room kit"),
    **dict.fromkeys(range(16, 24), "power kit"),
    24: "electronic kit",
    25: "drum machine",
    **dict.fromkeys(range(32, 40), "jazz kit"),
    **dict.fromkeys(range(40, 48), "brush kit"),
    48: "orchestra kit",
}
_DRUMS = """acoustic bass drum, bass drum, side stick, acoustic snare drum, hand clap,
    electric snare drum, low floor tom, closed hi-hat, high floor tom, pedal hi-hat, low tom,
    open hi-hat, low mid tom, high mid tom, crash cymbal, high tom, ride cymbal, chinese cymbal,
    ride bell, tambourine, splash cymbal, cowbell, second crash cymbal, vibraslap,
    second ride cymbal, high bongo, low bongo, mute high conga, open high conga, low conga,
    high timbale, low timbale, high agogo, low agogo, cabasa, maracas, short whistle,
    long whistle, short guiro, long guiro, claves, high wood block, low wood block, mute cuica,
    open cuica, mute triangle, open triangle"""
DRUMS = {35 + i: " ".join(name.split()) for i, name in enumerate(_DRUMS.split(","))}


def name(program: int) -> str:
    """Of a General MIDI program, 0 to 127."""
    return _NAMES[program][0]


def family(program: int) -> str:
    """Of a General MIDI program, 0 to 127."""
    return _NAMES[program][1]
