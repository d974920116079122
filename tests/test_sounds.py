"""Sound fonts, spectra and heat pictures, from which the stream with more modalities is made."""

import struct

import numpy as np
import pytest

from pocket import sounds

RATE = 32000


def tone(hertz, seconds, rate=RATE):
    return np.round(12000 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate))


def recording(samples, **settings):
    plain = {"loop": None, "hold": 0.0, "decay": 1.0, "sustain": 0.0, "pitch": 69}
    return sounds.Recording(np.int16(samples), RATE, **(plain | settings))


def chunk(name, body):
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def write_soundfont(path, waves, presets):
    """A sound font; a preset is (bank, program, zones), a zone (sample, {generator: value})."""
    at, samples, headers = 0, [], b""
    for wave, loop, pitch, channel in waves:
        start, end = at, at + len(wave)
        bounds = (start, end, start + loop[0], start + loop[1])
        headers += struct.pack("<20sIIIIIBbHH", b"wave", *bounds, RATE, pitch, 0, 0, channel)
        samples.append(np.int16(wave))
        at = end
    phdr, pbag, pgen, inst, ibag, igen = (b"" for _ in range(6))
    for index, (bank, program, zones) in enumerate(presets):
        phdr += struct.pack("<20sHHHIII", b"preset", program, bank, index, 0, 0, 0)
        pbag += struct.pack("<HH", index, 0)
        pgen += struct.pack("<HH", 41, index)
        inst += struct.pack("<20sH", b"instrument", len(ibag) // 4)
        for sample, settings in zones:
            ibag += struct.pack("<HH", len(igen) // 4, 0)
            found = settings | ({} if sample is None else {53: sample})
            igen += b"".join(struct.pack("<HH", key, value) for key, value in found.items())
    phdr += struct.pack("<20sHHHIII", b"EOP", 0, 0, len(presets), 0, 0, 0)
    pbag += struct.pack("<HH", len(presets), 0)
    inst += struct.pack("<20sH", b"EOI", len(ibag) // 4)
    ibag += struct.pack("<HH", len(igen) // 4, 0)
    headers += struct.pack("<20sIIIIIBbHH", b"EOS", *[0] * 9)
    parts = {b"phdr": phdr, b"pbag": pbag, b"pgen": pgen, b"inst": inst, b"ibag": ibag}
    parts |= {b"igen": igen, b"shdr": headers}
    pdta = chunk(b"LIST", b"pdta" + b"".join(chunk(k, v) for k, v in parts.items()))
    sdta = chunk(b"LIST", b"sdta" + chunk(b"smpl", np.concatenate(samples).tobytes()))
    path.write_bytes(chunk(b"RIFF", b"sfbk" + sdta + pdta))


@pytest.fixture
def font(tmp_path):
    low, high, drum = tone(110, 0.2), tone(880, 0.2), tone(300, 0.1)
    waves = [(low, (100, 6000), 45, 1), (high, (0, 0), 81, 4), (high, (0, 0), 81, 2)]
    waves.append((drum, (0, 0), 60, 1))
    violin = [(None, {54: 1, 36: 65536 - 1200}), (0, {}), (1, {54: 0, 58: 80}), (2, {})]
    path = tmp_path / "small.sf2"
    presets = [(128, 0, [(3, {43: 38 | 38 << 8})]), (0, 40, violin), (0, 110, [(0, {})])]
    write_soundfont(path, waves, presets)
    return path


def test_a_sound_font_is_read(font):
    violin_low, violin_high, fiddle, drum = sounds.read_soundfont(font)  # without the right channel
    assert (violin_low.bank, violin_low.program, violin_low.sample) == (0, 40, 0)
    assert violin_low.recording.loop == (100, 6000)  # from the zone for all
    assert violin_low.recording.decay == pytest.approx(0.5)  # -1200 timecents
    assert violin_low.recording.pitch == 45
    assert (violin_high.recording.loop, violin_high.recording.pitch) == (None, 80)
    np.testing.assert_array_equal(violin_high.recording.samples, tone(880, 0.2))
    assert (fiddle.program, fiddle.sample, fiddle.recording.loop) == (110, 0, None)
    assert (drum.bank, drum.key) == (128, 38)
    # A recording that two instruments share belongs to the first.
    found = {picture.texts[0]: picture.category[0] for picture in sounds.soundfont(font, 1)}
    assert found == {"violin": "strings", "acoustic snare drum": "drums and percussion"}


def test_a_loop_sounds_on_and_the_volume_falls():
    wave = tone(320, 0.1)  # 32 whole periods
    for settings, late in (({"loop": None}, 0), ({"loop": (0, len(wave))}, 1)):
        sound = sounds.play(recording(wave, **settings))
        assert len(sound) == 2 * sounds.RATE
        assert np.abs(sound[sounds.RATE :]).max() == pytest.approx(late, abs=0.03)
    fading = recording(wave, loop=(0, len(wave)), hold=0.5, decay=5.0, sustain=15.0)
    sound = sounds.play(fading)
    for second, decibel in ((0.25, 0), (1.0, 10), (1.5, 15), (1.9, 15)):
        around = sound[int(second * sounds.RATE) :][:200]
        assert 20 * np.log10(np.abs(around).max()) == pytest.approx(-decibel, abs=0.5)


def test_a_spectrum_shows_a_tone_where_it_is():
    shown = [sounds.log_mel(sounds.play(recording(tone(f, 2)))) for f in (220, 880, 3520)]
    bands = [int(np.median(s.argmax(axis=0))) for s in shown]
    mel = [2595 * np.log10(1 + f / 700) for f in (40, 220, 880, 3520, sounds.RATE / 2)]
    for band, m in zip(bands, mel[1:-1], strict=True):
        expected = (m - mel[0]) / (mel[-1] - mel[0]) * (sounds.BANDS + 1) - 1
        assert band == pytest.approx(expected, abs=1)
    assert shown[0].shape == (112, 224)
    assert (shown[0].max(), shown[0].min()) == (1, 0)
    picture = sounds.draw(recording(tone(880, 0.5)))
    assert (picture.shape, picture.dtype) == ((224, 224, 3), np.uint8)
    mean, deviation, change = sounds.statistics(picture).reshape(3, 112)
    assert mean.argmax() == pytest.approx(111 - bands[1], abs=1)  # bands from the top
    assert deviation[111 - bands[1]] > 0.3  # it stops after half a second
    assert change.max() < mean.max()
