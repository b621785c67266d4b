import io
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_deeponet.data import OperatorData

RNG = np.random.default_rng


@st.composite
def data_sets(draw):
    """Full grids, equal and ragged index sets, of any small size, without equal functions."""
    n, k, q, d = (draw(st.integers(1, 5)) for _ in range(4))
    rng = RNG(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    u = rng.normal(size=(n, k)).astype(dtype)
    y = rng.normal(size=(q, d)).astype(dtype)
    kind = draw(st.sampled_from(["grid", "missing", "equal", "ragged"]))
    if kind in ("grid", "missing"):
        s, index = rng.normal(size=(n, q)).astype(dtype), None
    else:
        m = draw(st.integers(1, 6))
        s, index = rng.normal(size=(n, m)).astype(dtype), rng.integers(0, q, size=(n, m))
    mask = None
    if kind in ("missing", "ragged"):
        mask = rng.random(s.shape) < 0.6
        mask[np.arange(n), rng.integers(0, s.shape[1], n)] = True
        s = np.where(mask, s, np.nan)
    return OperatorData(u, y, s, index, mask)


def small(n=4, k=3, q=5, d=2, seed=0, **kwargs):
    rng = RNG(seed)
    arrays = {
        "u": rng.normal(size=(n, k)),
        "y": rng.normal(size=(q, d)),
        "s": rng.normal(size=(n, q)),
    }
    return OperatorData(**(arrays | kwargs))


@given(data_sets())
@settings(deadline=None, max_examples=150)
def test_rows_and_back_is_the_same_data(data):
    again = OperatorData.from_rows(*data.to_rows())
    assert again == data
    assert again.num_observations == data.num_observations
    assert again.u.dtype == data.u.dtype


@given(data_sets(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=50)
def test_the_order_of_rows_only_orders_the_functions(data, random):
    u, y, s = data.to_rows()
    order = list(range(len(s)))
    random.shuffle(order)
    again = OperatorData.from_rows(u[order], y[order], s[order])
    where = [int((again.u == row).all(1).nonzero()) for row in data.u]
    assert again.subset(where) == data


def test_rows_are_what_the_paper_writes():
    data = OperatorData(
        u=[[1.0, 2.0], [3.0, 4.0]],
        y=[[0.1], [0.2], [0.3]],
        s=[[10.0, 20.0], [30.0, 0.0]],
        index=[[2, 0], [1, 0]],
        mask=[[True, True], [True, False]],
    )
    u, y, s = data.to_rows()
    assert u.tolist() == [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]]
    torch.testing.assert_close(y, torch.tensor([[0.3], [0.1], [0.2]]))
    assert s.tolist() == [10.0, 20.0, 30.0]
    torch.testing.assert_close(data.observed_locations(0), torch.tensor([[0.3], [0.1]]))
    torch.testing.assert_close(data.observed_locations(1), torch.tensor([[0.2]]))


def test_the_papers_matrix_shrinks_to_its_distinct_parts():
    rng = RNG(0)
    u = np.repeat(rng.normal(size=(3000, 100)).astype(np.float32), 20, axis=0)
    y = rng.integers(0, 100, size=(60_000, 1)) / 99
    data = OperatorData.from_rows(u, y, rng.normal(size=60_000))
    assert (len(data), data.y.shape[0], data.num_observations) == (3000, 100, 60_000)


def test_repeated_measurements_of_one_point_are_all_kept():
    data = OperatorData.from_rows([[1.0]] * 3, [[0.5]] * 3, [1.0, 2.0, 3.0])
    assert len(data) == 1
    assert data.y.shape == (1, 1)
    assert sorted(data.s.flatten().tolist()) == [1.0, 2.0, 3.0]


def test_negative_zero_is_zero():
    assert len(OperatorData.from_rows([[0.0], [-0.0]], [[1.0], [2.0]], [1.0, 2.0])) == 1


def test_differences_are_seen():
    data = small()
    s, u = data.s.clone(), data.u.clone()
    s[1, 2] += 1e-6
    u[3, 0] += 1
    assert data != small(s=s)
    assert data != small(u=u)
    assert data != data.subset([0, 1, 2])
    assert data != "something else"


@pytest.mark.parametrize(
    ("indices", "rows"),
    [
        (2, [2]),
        (-1, [3]),
        ([3, 1], [3, 1]),
        (slice(1, 3), [1, 2]),
        ([True, False, False, True], [0, 3]),
        (torch.tensor([0]), [0]),
    ],
)
def test_subset(indices, rows):
    data = small(index=RNG(1).integers(0, 5, (4, 5)), mask=np.tri(4, 5, 0, dtype=bool))
    part = data.subset(indices)
    torch.testing.assert_close(part.u, data.u[rows])
    assert part.index.shape == part.s.shape == (len(rows), 5)
    for i, row in enumerate(rows):
        torch.testing.assert_close(part.observed_locations(i), data.observed_locations(row))


@pytest.mark.parametrize("indices", [[], [4], [-5], [True], slice(9, 9)])
def test_subset_out_of_range(indices):
    with pytest.raises(ValueError, match=r"functions|empty|booleans"):
        small().subset(indices)


def test_subset_of_fractions_is_refused():
    with pytest.raises(TypeError, match="whole numbers"):
        small().subset([0.5])


def test_split_is_a_seeded_partition():
    data = small(n=10)
    first, second = data.split(0.7, seed=3)
    assert (len(first), len(second)) == (7, 3)
    both = torch.cat([first.u, second.u])
    assert sorted(both.tolist()) == sorted(data.u.tolist())
    assert data.split(0.7, seed=3)[0] == first
    assert data.split(0.7, seed=4)[0] != first


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 0.01])
def test_split_leaves_no_side_empty(fraction):
    with pytest.raises(ValueError, match="empty"):
        small().split(fraction)


def test_to_changes_floats_only():
    data = small(index=RNG(1).integers(0, 5, (4, 5)), mask=np.tri(4, 5, 0, dtype=bool))
    half = data.to(torch.float32)
    assert half.u.dtype == half.y.dtype == half.s.dtype == torch.float32
    assert half.index.dtype == torch.int64
    assert half.mask.dtype == torch.bool
    assert data.to("cpu") == data


def test_it_is_frozen():
    with pytest.raises(AttributeError):
        small().u = torch.ones(2, 2)


def test_repr_tells_the_sizes():
    assert repr(small()) == (
        "OperatorData(4 functions x 5 points, 3 sensors, 5 locations in 2 coordinates, float64)"
    )
    ragged = small(mask=np.tri(4, 5, 0, dtype=bool))
    assert "1 to 4 points" in repr(ragged)


def test_one_float_type_for_all():
    data = OperatorData(np.ones((1, 2), np.float32), np.ones((1, 1)), np.ones((1, 1), np.int32))
    assert data.u.dtype == data.y.dtype == data.s.dtype == torch.float64
    assert OperatorData([[1, 2]], [[0]], [[3]]).u.dtype == torch.float32


ARRAYS = {"u": np.ones((4, 3)), "y": np.ones((5, 2)), "s": np.ones((4, 5))}


def with_bad(name, row, value):
    array = ARRAYS[name].copy()
    array[row, 0] = value
    return {name: array}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (with_bad("u", 2, np.nan), ValueError, r"u has 1 NaN or infinite .* first in row 2"),
        (with_bad("y", 3, np.inf), ValueError, r"y has 1 NaN or infinite .* first in row 3"),
        (with_bad("s", 1, np.nan), ValueError, r"s has 1 NaN .* row 1; .*mask=np.isfinite"),
        ({"s": np.ones((4, 6))}, ValueError, r"s has shape \(4, 6\), expected \(4, 5\)"),
        ({"s": np.ones((5, 4))}, ValueError, r"s has shape \(5, 4\), expected \(4, 5\)"),
        ({"u": np.ones((0, 3))}, ValueError, "empty"),
        ({"y": np.ones((0, 2)), "s": np.ones((4, 0))}, ValueError, "empty"),
        ({"u": np.ones(3)}, ValueError, r"u has shape \(3,\).*pass u\[None, :\]"),
        ({"y": np.ones(5)}, ValueError, r"y has shape \(5,\).*pass y\[:, None\]"),
        ({"s": np.ones(5)}, ValueError, r"s has shape \(5,\).*pass s\[None, :\]"),
        ({"index": np.full((4, 5), 5)}, ValueError, "index runs from 5 to 5, but y has 5 rows"),
        ({"index": np.full((4, 5), -1)}, ValueError, "index runs from -1"),
        ({"index": np.zeros((3, 5), int)}, ValueError, r"index has shape \(3, 5\)"),
        ({"index": np.zeros((4, 5))}, TypeError, "whole numbers"),
        ({"mask": np.ones((4, 4), bool)}, ValueError, r"mask has shape \(4, 4\)"),
        ({"mask": np.ones((4, 5))}, TypeError, "booleans"),
        ({"mask": np.arange(4)[:, None] * np.ones(5) > 0}, ValueError, "function 0 has no obs"),
        ({"s": np.full((4, 5), 1j)}, TypeError, "real numbers"),
        ({"s": [["a"] * 5] * 4}, TypeError, "s must be a numeric"),
        ({"u": [[1.0], [1.0, 2.0]]}, TypeError, "u must be a numeric"),
    ],
)
def test_bad_input(change, error, message):
    with pytest.raises(error, match=message):
        OperatorData(**(ARRAYS | change))


def test_whole_numbers_that_would_lose_precision():
    exact = np.full((4, 5), 2**24)
    small_floats = {name: ARRAYS[name].astype(np.float32) for name in ("u", "y")}
    assert (OperatorData(**small_floats, s=exact).s == 2.0**24).all()
    with pytest.raises(ValueError, match=r"s holds whole numbers .*astype"):
        OperatorData(**small_floats, s=exact + 1)


def test_masked_entries_may_hold_anything():
    s = ARRAYS["s"].copy()
    s[:, 0] = np.nan
    index = np.zeros((4, 5), int)
    index[:, 0] = 99
    data = OperatorData(ARRAYS["u"], ARRAYS["y"], s, index, mask=np.isfinite(s))
    assert torch.isfinite(data.s).all()
    assert data.num_observations == 16


@pytest.mark.parametrize(
    ("u", "y", "s", "message"),
    [
        (np.ones((4, 2)), np.ones((3, 1)), np.ones(4), "u has 4 rows, y 3"),
        (np.ones((4, 2)), np.ones((4, 1)), np.ones((5, 2)), r"s has shape \(5, 2\)"),
        (np.ones((4, 2)), np.ones(4), np.ones(4), r"y\[:, None\]"),
        (np.ones((0, 2)), np.ones((0, 1)), np.ones(0), "empty"),
        (np.ones((4, 2)), np.ones((4, 1)), np.full(4, np.nan), "s has 4 NaN"),
    ],
)
def test_bad_rows(u, y, s, message):
    with pytest.raises(ValueError, match=message):
        OperatorData.from_rows(u, y, s)


@given(data=data_sets())
@settings(deadline=None, max_examples=25)
def test_save_and_load(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("data") / "deep" / "data.npz"
    again = OperatorData.load(data.save(path))
    assert again == data
    assert again.u.dtype == data.u.dtype
    assert again.s.shape == data.s.shape


def test_saving_never_leaves_half_a_file(tmp_path, monkeypatch):
    path = tmp_path / "data.npz"
    good = small()
    good.save(path)

    def fails_midway(file, **arrays):
        file.write(b"PK half a file")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fails_midway)
    with pytest.raises(OSError, match="disk full"):
        small(seed=1).save(path)
    assert OperatorData.load(path) == good
    assert [p.name for p in tmp_path.iterdir()] == ["data.npz"]


def deepxde(kind):
    """The same five functions at seven locations in each of DeepXDE's layouts."""
    rng = RNG(0)
    u, y, s = rng.normal(size=(5, 4)), rng.normal(size=(7, 2)), rng.normal(size=(5, 7))
    rows = OperatorData(u, y, s).to_rows()
    flat = [rows[0].numpy(), rows[1].numpy(), rows[2].numpy()[:, None]]
    pair = np.empty(2, object)
    pair[0], pair[1] = u, y
    arrays = {
        "aligned": {"X0": u, "X1": y, "y": s},
        "aligned train": {"X_train0": u, "X_train1": y, "y_train": s},
        "aligned object": {"X": pair, "y": s},
        "unaligned": dict(zip(["X0", "X1", "y"], flat, strict=True)),
        "unaligned train": dict(zip(["X_train0", "X_train1", "y_train"], flat, strict=True)),
    }[kind]
    return arrays, OperatorData(u, y, s)


@pytest.mark.parametrize(
    "kind", ["aligned", "aligned train", "aligned object", "unaligned", "unaligned train"]
)
def test_deepxde_files(tmp_path, kind):
    arrays, expected = deepxde(kind)
    path = tmp_path / "deepxde.npz"
    np.savez(path, **arrays)
    data = OperatorData.from_npz(path, allow_pickle=kind == "aligned object")
    assert data == expected
    assert data.source.startswith(f"DeepXDE {kind.split()[0]}")
    assert data.source in repr(data)


def test_train_and_test_part_of_one_file(tmp_path):
    path = tmp_path / "both.npz"
    train, test = small(seed=1), small(seed=2)
    np.savez(
        path,
        X_train0=train.u, X_train1=train.y, y_train=train.s,
        X_test0=test.u, X_test1=test.y, y_test=test.s,
    )  # fmt: skip
    assert OperatorData.from_npz(path) == train
    assert OperatorData.from_npz(path, part="test") == test
    with pytest.raises(ValueError, match="'train' or 'test'"):
        OperatorData.from_npz(path, part="validation")


def test_pickled_arrays_are_refused_unless_asked_for(tmp_path):
    arrays, _ = deepxde("aligned object")
    path = tmp_path / "object.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=r"'X' is a pickled .* allow_pickle=True"):
        OperatorData.from_npz(path)


class Payload:
    def __reduce__(self):
        return exec, ("import pathlib; pathlib.Path('payload-ran').touch()",)


@pytest.mark.parametrize("kind", ["bare pickle", "pickle in an archive"])
def test_a_malicious_file_runs_nothing(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.npz"
    if kind == "bare pickle":
        path.write_bytes(pickle.dumps(Payload()))
    else:
        np.savez(path, u=np.array([Payload()], dtype=object))
    for read in (OperatorData.from_npz, OperatorData.load):
        with pytest.raises(ValueError, match=r"pickled|not a complete"):
            read(path)
    if kind == "bare pickle":
        with pytest.raises(ValueError, match="not a complete"):
            OperatorData.from_npz(path, allow_pickle=True)
    assert not Path("payload-ran").exists()


def test_truncated_and_foreign_files(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, u=np.ones((40, 30)), y=np.ones((5, 2)), s=np.ones((40, 5)))
    whole = buffer.getvalue()
    path = tmp_path / "cut.npz"
    for tenth in range(10):
        path.write_bytes(whole[: len(whole) * tenth // 10])
        with pytest.raises(ValueError, match=r"cut short|damaged"):
            OperatorData.from_npz(path)
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0xFF
    path.write_bytes(bytes(flipped))
    with pytest.raises(ValueError, match="damaged"):
        OperatorData.from_npz(path)
    np.savez(path, weights=np.ones(3))
    with pytest.raises(ValueError, match=r"\['weights'\].*OperatorData\(u, y, s\)"):
        OperatorData.from_npz(path)
    np.savez(path, X0=np.ones((4, 3)), X1=np.ones((5, 2)), y=np.ones((4, 6)))
    with pytest.raises(ValueError, match=r"\(4, 3\), \(5, 2\), \(4, 6\)"):
        OperatorData.from_npz(path)
    with pytest.raises(FileNotFoundError):
        OperatorData.load(tmp_path / "absent.npz")


def test_a_killed_save_leaves_the_old_file(tmp_path):
    """A process that dies in the middle of writing, by a signal it cannot catch."""
    path = tmp_path / "data.npz"
    small().save(path)
    script = (
        "import os, signal, sys\n"
        "from pyro_deeponet.storage import write_atomically\n"
        "def write(file):\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_atomically(sys.argv[1], write)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -9
    assert OperatorData.load(path) == small()


def test_a_row_for_each_observation_is_recognised(tmp_path):
    data = OperatorData(np.eye(3), [[0.0], [1.0]], np.arange(6.0).reshape(3, 2))
    u, y, s = (x.numpy() for x in data.to_rows())
    for values in (s, s[:, None]):
        with pytest.raises(ValueError, match=r"6 rows each.*from_rows"):
            OperatorData(u, y, values)
        np.savez(tmp_path / "rows.npz", u=u, y=y, s=values)
        read = OperatorData.from_npz(tmp_path / "rows.npz")
        assert read == data
        assert "u, y, s rows" in repr(read)


def test_locations_of_each_functions_own_are_sent_to_from_rows():
    u, y, s = np.eye(3), np.random.default_rng(0).random((3, 4, 2)), np.ones((3, 4))
    with pytest.raises(ValueError, match=r"y has shape \(3, 4, 2\).*from_rows"):
        OperatorData(u, y, s)
    data = OperatorData.from_rows(u.repeat(4, axis=0), y.reshape(12, 2), s.reshape(12))
    assert data.s.shape == (3, 4)
    np.testing.assert_array_equal(data.observed_locations(1), y[1])
