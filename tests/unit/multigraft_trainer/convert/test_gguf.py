import struct

import numpy as np
import pytest

from builders.gguf_file import write_gguf
from multigraft_trainer.convert.gguf import GgufFile, dequantise_q4_1, dequantise_q8_0


def half(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}e", *values)


def test_q8_0_block_computed_by_hand():
    block = half(0.5) + struct.pack("<32b", *range(-16, 16))
    np.testing.assert_array_equal(dequantise_q8_0(np.frombuffer(block, np.uint8)), [0.5 * q for q in range(-16, 16)])


def test_q4_1_block_computed_by_hand_low_nibbles_are_the_first_half():
    # byte i holds q = i in its low and q = 15 - i in its high nibble; value = 0.25 q - 2
    block = half(0.25, -2.0) + bytes(i | (15 - i) << 4 for i in range(16))
    want = [0.25 * i - 2 for i in range(16)] + [0.25 * (15 - i) - 2 for i in range(16)]
    np.testing.assert_array_equal(dequantise_q4_1(np.frombuffer(block, np.uint8)), want)


def test_each_block_has_its_own_scale():
    blocks = half(1.0) + struct.pack("<32b", *[1] * 32) + half(-2.0) + struct.pack("<32b", *[1] * 32)
    got = dequantise_q8_0(np.frombuffer(blocks, np.uint8))
    assert got.dtype == np.float32
    assert got.tolist() == [1.0] * 32 + [-2.0] * 32


def test_tensors_of_all_types_are_read_with_their_row_major_shape(tmp_path):
    f32 = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensors = {
        "f32": f32,
        "f16": ((3,), 1, half(1.5, -2.0, 0.25)),
        "q8": ((2, 32), 8, (half(0.5) + struct.pack("<32b", *range(32))) * 2),
        "q4": ((1, 32), 3, half(1.0, 0.0) + bytes([0x21] * 16)),
    }
    gguf = GgufFile(write_gguf(tmp_path / "m.gguf", {"a": 1}, tensors))
    np.testing.assert_array_equal(gguf.load_tensor("f32"), f32)
    assert gguf.load_tensor("f16").tolist() == [1.5, -2.0, 0.25]
    assert gguf.load_tensor("q8").shape == (2, 32)
    assert gguf.load_tensor("q8")[1, 31] == 15.5
    assert gguf.load_tensor("q4").tolist() == [[1.0] * 16 + [2.0] * 16]


def test_metadata_keeps_types(tmp_path):
    want = {"int": 7, "text": "größe", "yes": True, "half": 0.5, "list": ["a", "b"], "empty": [], "ids": [1, 2]}
    assert GgufFile(write_gguf(tmp_path / "m.gguf", want, {})).metadata == want


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"magic": b"PK\x03\x04"}, r"got magic b'PK.*allowed: b'GGUF' version 2 or 3", id="another format"),
        pytest.param({"version": 9}, "version 9", id="another version"),
    ],
)
def test_another_file_is_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        GgufFile(write_gguf(tmp_path / "m.gguf", {"a": 1}, {}, **change))


@pytest.mark.parametrize("num_bytes", [1, 4, 20, 30, 60])
def test_a_file_cut_short_in_the_header_is_refused(tmp_path, num_bytes):
    path = write_gguf(tmp_path / "m.gguf", {"key": "a longer text"}, {"t": np.zeros(4, np.float32)})
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(ValueError, match=r"m\.gguf: header is cut short"):
        GgufFile(path)


def test_a_file_cut_short_in_a_tensor_is_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {}, {"t": np.zeros((4, 8), np.float32)})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="tensor t: 127 bytes for shape"):
        GgufFile(path).load_tensor("t")


def test_a_tensor_type_that_is_not_supported_is_refused_by_name(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {}, {"t": ((32,), 12, b"\0" * 144)})
    with pytest.raises(ValueError, match="got ggml type 12, allowed: F32, F16, Q4_1, Q8_0"):
        GgufFile(path).load_tensor("t")


def test_a_shape_that_is_not_whole_blocks_is_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {}, {"t": ((33,), 8, b"\0" * 34)})
    with pytest.raises(ValueError, match=r"tensor t: 34 bytes for shape \(33,\) as Q8_0"):
        GgufFile(path).load_tensor("t")
