"""PyTorch's files read without PyTorch: what is in them, what is refused, and that nothing runs."""

import builtins
import os
import pickle
import re
import subprocess

import ml_dtypes
import numpy as np
import pytest
from checkpoints import (
    CONFIG,
    call,
    mapping,
    name,
    number,
    pickled,
    random_state,
    sequence,
    tensor,
    text,
    write_checkpoint,
    write_zip,
)

from hmcl_jax.backbones.checkpoint import LARGEST_PICKLE, CheckpointError, read_checkpoint

FOUR = np.arange(4, dtype="<f4")


@pytest.fixture(scope="module")
def state():
    return random_state()


def same(found, expected):
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key].dtype == values.dtype
        assert found[key].shape == values.shape
        assert not found[key].flags.writeable
        np.testing.assert_array_equal(found[key], values)


@pytest.mark.parametrize(
    "options", [{}, {"prefix": "module."}, {"wrapped": False}, {"beside": {"iteration": number(7)}}]
)
def test_every_tensor_is_found(tmp_path, state, options):
    path = write_checkpoint(tmp_path / "small.pth", state, **options)
    found = read_checkpoint(path)
    same(found.tensors, state)
    digest = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True)
    assert found.about == {"file": "small.pth", "sha256": digest.stdout.split()[0]}


@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<f2", ml_dtypes.bfloat16, "<i8", "?"])
def test_dtypes(tmp_path, dtype):
    values = {"x": np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)}
    same(read_checkpoint(write_checkpoint(tmp_path / "a.pth", values)).tensors, values)


def read_one(tmp_path, entry, storages=None, **options):
    """A checkpoint of one tensor `x`."""
    data = b"\x80\x02" + mapping({"model": mapping({"x": entry})}) + b"."
    storages = {"0": FOUR.tobytes()} if storages is None else storages
    return read_checkpoint(write_zip(tmp_path / "one.pth", data, storages, **options)).tensors["x"]


def test_views_of_a_storage(tmp_path):
    turned = read_one(tmp_path, tensor("0", (2, 2), strides=(1, 2)))
    np.testing.assert_array_equal(turned, FOUR.reshape(2, 2).T)
    later = read_one(tmp_path, tensor("0", (2,), size=4, offset=1, strides=(2,)))
    np.testing.assert_array_equal(later, [1, 3])
    assert read_one(tmp_path, tensor("0", (), size=4)).shape == ()
    assert read_one(tmp_path, tensor("0", (0, 3), size=4)).shape == (0, 3)
    parameter = call(name("torch._utils", "_rebuild_parameter"), tensor("0", (4,)), b"\x88", b"N")
    np.testing.assert_array_equal(read_one(tmp_path, parameter), FOUR)


@pytest.mark.parametrize(
    "entry",
    [
        tensor("0", (5,), size=4, strides=(1,)),
        tensor("0", (4,), offset=1),
        tensor("0", (2, 2), strides=(3, 1)),
        tensor("0", (2, 2), strides=(-2, 1), offset=2),
        tensor("0", (4,), offset=-1),
        tensor("0", (-4,), size=4),
        tensor("0", (2**62, 4), size=4, strides=(0, 1)),
        tensor("0", (1000,), size=4, strides=(0,)),
        tensor("0", (2**200,), size=4, strides=(1,)),
        tensor("0", (4,), size=2**63),
        tensor("0", (4,), size=5),
        tensor("0", (4,), size=-1),
        tensor("0", (4,), strides=(1, 1)),
        tensor("0", (1,) * 40, size=4),
        tensor("0", (4,), offset=10**5000),
        tensor("1", (4,)),
        tensor("../../secret", (4,)),
        tensor("0", (4,), "ComplexFloatStorage"),
        tensor("0", (2,), "DoubleStorage", size=4),
        call(name("torch._utils", "_rebuild_tensor_v2"), *[b"N"] * 6),
        call(name("torch._utils", "_rebuild_tensor_v2"), b"N"),
    ],
)
def test_tensors_outside_of_their_storage(tmp_path, entry):
    with pytest.raises(CheckpointError, match=r"one\.pth.*(x |data/|data\.pkl)"):
        read_one(tmp_path, entry)


def test_members_as_pytorch_does_not_write_them(tmp_path):
    entry = tensor("0", (4,))
    for member in ("data.pkl", "data/0"):
        with pytest.raises(CheckpointError, match=rf"one\.pth: member {member} is compressed"):
            read_one(tmp_path, entry, compressed=[member])
    for order in (b"big", b"", b"little or big, who knows"):
        with pytest.raises(CheckpointError, match=r"one\.pth.*byteorder"):
            read_one(tmp_path, entry, byteorder=order)
    with pytest.raises(CheckpointError, match=r"one\.pth.*0 members"):
        read_one(tmp_path, entry, root="a/b")
    with pytest.raises(CheckpointError, match=r"one\.pth.*data\.pkl has .* more than"):
        read_one(tmp_path, entry + b"N0" * (LARGEST_PICKLE // 2))


def test_truncated_anywhere(tmp_path, state):
    whole = write_checkpoint(tmp_path / "whole.pth", state).read_bytes()
    victim = tmp_path / "victim.pth"
    for end in np.linspace(0, len(whole) - 1, 20).astype(int):
        victim.write_bytes(whole[:end])
        with pytest.raises(CheckpointError, match=r"victim\.pth"):
            read_checkpoint(victim)


def test_other_files(tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*nowhere\.pth"):
        read_checkpoint(tmp_path / "nowhere.pth")
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        read_checkpoint(tmp_path)
    for content, match in {
        pickle.dumps({"model": {}}, 2): "before 1.6.*newer PyTorch",
        b"<!DOCTYPE html>": "not a PyTorch checkpoint",
        b"PK\x03\x04 and so on": "truncated or damaged",
    }.items():
        (tmp_path / "other.pth").write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"other\.pth .*{match}"):
            read_checkpoint(tmp_path / "other.pth")
    for content, match in {
        b"\x80\x02N.": "instead of a dict",
        b"\x80\x02}.": r'no tensors in \["model"\]; it holds: nothing',
        b"\x80\x02" + mapping({"weights": b"}"}) + b".": "it holds: weights",
        b"\x80\x02" + mapping({"model": CONFIG}) + b".": "it holds: model",
        b"\x80\x02" + mapping({k: tensor("0", (4,)) for k in ("x", "module.x")}) + b".": "x is the",
        b"\x80\x02" + mapping({"x": tensor("0", (4,)), "y": b"N"}) + b".": "y is not a tensor",
        b"\x80\x02" + mapping({"x": tensor("0", (4,))}): "data.pkl is refused",
    }.items():
        path = write_zip(tmp_path / "other.pth", content, {"0": FOUR.tobytes()})
        with pytest.raises(CheckpointError, match=rf"other\.pth.*{match}"):
            read_checkpoint(path)


class Evil:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


def evil_calls(canary):
    code = f"open({str(canary)!r}, 'w').close()"
    return {
        "system": Evil(os.system, f"touch '{canary}'"),
        "eval": Evil(builtins.eval, code),
        "exec": Evil(builtins.exec, code),
        "call": Evil(subprocess.call, ["touch", str(canary)]),
        "map": Evil(list, Evil(map, builtins.eval, [code])),
        "nested": [{"a": ({"b": Evil(builtins.eval, code)},)}],
    }


def live_pickles(canary):
    """Pickles that make the canary when unpickled, by name."""
    found = {}
    for what, value in evil_calls(canary).items():
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            found[f"{what}, protocol {protocol}"] = pickle.dumps(value, protocol)
    command = f"touch '{canary}'"
    found["INST"] = f"(S{command!r}\niposix\nsystem\n.".encode()
    found["OBJ"] = b"(" + name("posix", "system") + text(command) + b"o."
    code = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    found["STACK_GLOBAL"] = (
        b"\x80\x04" + text("builtins") + text("eval") + b"\x93" + text(code) + b"\x85R."
    )
    evil = call(name("posix", "system"), text(command))
    stub = name("collections", "OrderedDict") + b")R"
    found["state"] = b"\x80\x02" + stub + mapping({"x": evil}) + b"b."
    found["key"] = b"\x80\x02}" + evil + b"Ns."
    found["dropped"] = b"\x80\x02" + evil + b"0N."
    return found


def embedded(evil):
    """The pickle's work in a checkpoint whose model is as it should be."""
    body = evil.removesuffix(b".")
    if body[:1] == b"\x80":
        body = body[2:]
    data, storages = pickled({"x": FOUR})
    head = data.removesuffix(b".")
    return [
        (evil, storages),  # as the whole
        (b"\x80\x04" + body + b"0" + data[2:], storages),  # before
        (head + body + b"0.", storages),  # after
        (pickled({"x": FOUR}, beside={"scheduler": body})[0], storages),  # beside
    ]


def test_pickles_that_run_code_are_refused(tmp_path):
    canary = tmp_path / "canary"
    path = tmp_path / "evil.pth"
    for what, evil in live_pickles(canary).items():
        for data, storages in embedded(evil):
            write_zip(path, data, storages)
            with pytest.raises(CheckpointError, match=r"evil\.pth: data\.pkl is refused: it names"):
                read_checkpoint(path)
            assert not canary.exists(), what
        pickle.loads(evil)  # it would have run
        assert canary.exists(), what
        canary.unlink()


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("nt", "system"),
        ("subprocess", "Popen"),
        ("builtins", "eval"),
        ("__builtin__", "getattr"),
        ("builtins", "__import__"),
        ("importlib", "import_module"),
        ("functools", "partial"),
        ("operator", "attrgetter"),
        ("collections", "OrderedDict.fromkeys"),
        ("collections", "_sys.modules"),
        ("typing", "sys.modules"),
        ("typing", "get_type_hints"),
        ("omegaconf", "OmegaConf.load"),
        ("omegaconf._utils", "yaml.load"),
        ("hydra.utils", "instantiate"),
        ("hydra._internal.utils", "_locate"),
        ("torch", "load"),
        ("torch.hub", "load"),
        ("torch", "_utils._rebuild_tensor_v2"),
        ("torch.storage", "_load_from_bytes"),
        ("torch.serialization", "load"),
        ("numpy", "load"),
        ("numpy.testing._private.utils", "runstring"),
        ("meru.models", "MERU"),
        ("omegaconfx", "DictConfig"),
        ("", ""),
        ("a\x1b[31m", "b"),
        ("x" * 10**5, "y"),
    ],
)
def test_other_names_are_refused(tmp_path, module, attribute):
    shown = f"{module}.{attribute}".replace("\x1b", r"\x1b")
    shown = re.escape(shown if len(shown) < 200 else f"{shown[:200]}...") + ", which"
    for named in (
        f"c{module}\n{attribute}\n".encode(),
        text(module) + text(attribute) + b"\x93",
        b"(" + f"i{module}\n{attribute}\n".encode(),
    ):
        data, storages = pickled({"x": FOUR}, beside={"scheduler": named})
        path = write_zip(tmp_path / "evil.pth", data, storages)
        with pytest.raises(CheckpointError, match=rf"evil\.pth: .* it names {shown}") as error:
            read_checkpoint(path)
        assert "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    "beside",
    [
        CONFIG,
        call(name("_codecs", "encode"), text("bytes"), text("latin1")),
        call(name("numpy.core.multiarray", "scalar"), name("numpy", "dtype"), b"N"),
        call(name("copy_reg", "_reconstructor"), name("__builtin__", "object"), b"N"),
        call(name("torch", "device"), text("cuda"), number(0)),
        call(name("torch", "Size"), sequence([number(3)])),
        name("torch", "float16"),
        name("torch.optim.lr_scheduler", "LambdaLR") + b")\x81}(X\x01\x00\x00\x00aNub",
        name("omegaconf.nodes", "AnyNode") + b")}\x92(Ne}(X\x01\x00\x00\x00aNub",
        b"\x8f(K\x01K\x02\x90",
        b"(K\x01K\x02\x91",
        b"}" + name("typing", "Any") + b"Ns",
        b"F1.5\n2(I1\nI01\nlq\x00h\x00(dp1\ng1\n00000",
    ],
)
def test_plain_objects_beside_the_model(tmp_path, beside):
    data, storages = pickled({"x": FOUR}, beside={"scheduler": beside})
    same(read_checkpoint(write_zip(tmp_path / "a.pth", data, storages)).tensors, {"x": FOUR})


@pytest.mark.parametrize(
    "middle",
    [
        b")" + b"\x85" * 10**6 + b"0",
        b"}" + b")" + b"\x85" * 10**6 + b"Ns0",  # this as a key ends Python's own unpickler
        b"]q\x00" + b"h\x00a" * 10 + b"0",
        b"}q\x00" + text("self") + b"h\x00s0",
        b"Nr\xff\xff\xff\x7f0",
    ],
)
def test_deep_and_cyclic_pickles(tmp_path, middle):
    data, storages = pickled({"x": FOUR})
    path = write_zip(tmp_path / "deep.pth", data[:2] + middle + data[2:], storages)
    same(read_checkpoint(path).tensors, {"x": FOUR})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\x02",
        b"\x80\x02(.",
        b"t.",
        b"\x85.",
        b"0.",
        b"u.",
        b"}(Nu.",
        b"b.",
        b"Nb.",
        b"R.",
        b"NNR.",
        b"h\x05.",
        b"Q.",
        b"NQ.",
        b"(NNNNNtQ.",
        b"Pid\n.",
        b"\x82\x01.",
        b"\x97.",
        b"NN\x93.",
        b"\x8a\xff\x00.",
        b"\x95" + b"\xff" * 8 + b".",
        b"\x8e" + b"\xff" * 8 + b".",
        b"L" + b"9" * 10**5 + b"L\n.",
        b"\xff\xff.",
        name("collections", "OrderedDict") + b"(](NNeetR.",
    ],
)
def test_damaged_pickles(tmp_path, data):
    with pytest.raises(CheckpointError, match=r"bad\.pth"):
        read_checkpoint(write_zip(tmp_path / "bad.pth", data, {"0": FOUR.tobytes()}))


def test_a_thousand_mutations(tmp_path):
    values = {"x": FOUR, "y": np.float32([[1, 2], [3, 4]])}
    data, storages = pickled(values)
    whole = write_zip(tmp_path / "whole.pth", data, storages).read_bytes()
    path = tmp_path / "victim.pth"
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(1000):
        of_file = trial % 2 == 0
        mutated = bytearray(whole if of_file else data)
        at = int(rng.integers(len(mutated)))
        if trial % 3:
            mutated[at] ^= 1 << int(rng.integers(8))
        else:
            mutated[at : at + 4] = rng.bytes(int(rng.integers(9)))
        if of_file:
            path.write_bytes(mutated)
        else:
            write_zip(path, bytes(mutated), storages)
        try:
            found = read_checkpoint(path)
        except CheckpointError:
            refused += 1
            continue
        if of_file:  # a change that no one sees, in a date or the like
            same(found.tensors, values)
    assert 400 < refused < 1000


def test_what_pytorch_writes(tmp_path, state):
    torch = pytest.importorskip("torch")
    tensors = {f"module.{key}": torch.tensor(value) for key, value in state.items()}
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(2, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    whole = {
        "model": tensors,
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": {},
        "iteration": 5,
    }
    torch.save(whole, tmp_path / "torch.pth")
    same(read_checkpoint(tmp_path / "torch.pth").tensors, state)
    torch.save(model.state_dict(), tmp_path / "bare.pth")
    found = read_checkpoint(tmp_path / "bare.pth").tensors
    same(found, {k: v.numpy() for k, v in model.state_dict().items()})
    views = {
        "rows": torch.arange(12.0).reshape(3, 4)[1:, ::2],
        "turned": torch.arange(12.0).reshape(3, 4).T,
        "half": torch.ones(3, dtype=torch.bfloat16),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    torch.save({"model": views}, tmp_path / "views.pth")
    found = read_checkpoint(tmp_path / "views.pth").tensors
    for key, value in views.items():
        np.testing.assert_array_equal(found[key].astype("f4"), value.detach().float().numpy())
    torch.save(whole, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="before 1"):
        read_checkpoint(tmp_path / "old.pth")
    torch.save({"model": model}, tmp_path / "module.pth")
    with pytest.raises(CheckpointError, match=r"names torch\.nn\.modules\.linear\.Linear"):
        read_checkpoint(tmp_path / "module.pth")
