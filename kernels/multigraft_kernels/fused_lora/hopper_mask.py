"""The dropout mask in Gluon kernels: the form that `keep_mask.py` explains, with layouts."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def philox_words(call, position, draw, step, key_low, key_high):  # type: ignore[no-untyped-def]
    """Give four uint32 [M, C] from call [1, C], position, draw, step [M, 1]; keys are scalars or [M, 1], uint32."""
    M0: gl.constexpr = 0xD2511F53
    M1: gl.constexpr = 0xCD9E8D57
    W0: gl.constexpr = 0x9E3779B9
    W1: gl.constexpr = 0xBB67AE85
    # First round: the products are one number per row and one per column, so that only one word is made in full.
    p1 = draw.to(gl.uint64) * M1
    p0 = call.to(gl.uint64) * M0
    zero = (position ^ position) | (call ^ call)
    c0 = ((p1 >> 32).to(gl.uint32) ^ position ^ key_low) | zero
    c1 = p1.to(gl.uint32) | zero
    c2 = (p0 >> 32).to(gl.uint32) ^ key_high ^ step
    c3 = p0.to(gl.uint32) | zero
    for _ in gl.static_range(6):
        key_low = key_low + W0
        key_high = key_high + W1
        p1 = c2.to(gl.uint64) * M1
        p0 = c0.to(gl.uint64) * M0
        c0 = (p1 >> 32).to(gl.uint32) ^ c1 ^ key_low
        c2 = (p0 >> 32).to(gl.uint32) ^ c3 ^ key_high
        c1 = p1.to(gl.uint32)
        c3 = p0.to(gl.uint32)
    return c0, c1, c2, c3


@gluon.jit
def split_threshold(threshold):  # type: ignore[no-untyped-def]
    """Give what `keep_signs` wants of a threshold (int32, at least 0): its low 15 bits twice, and not its bit 15."""
    low_bits = ((threshold & 0x7FFF) * 0x10001).to(gl.uint32)
    not_high = ((threshold >> 15) - 1).to(gl.uint32)
    return low_bits, not_high


@gluon.jit
def keep_signs(words, low_bits, not_high):  # type: ignore[no-untyped-def]
    """Set bits 15 and 31 where the low and the high half of a word is kept; the other bits are noise."""
    rest = (words | 0x80008000) - low_bits
    return (rest & words) | (not_high & (rest | words))


@gluon.jit
def spread_signs(signs):  # type: ignore[no-untyped-def]
    """Fill each half of a word with its sign bit."""
    return gl.inline_asm_elementwise(
        "prmt.b32 $0, $1, 0, 0xBB99;", "=r,r", [signs], dtype=gl.uint32, is_pure=True, pack=1
    )


@gluon.jit  # type: ignore[untyped-decorator]
def keep_pairs(w0, w1, w2, w3, low_bits, not_high, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """Give [M, 4 C] words of two features, all bits set where kept, from the four words [M, C] of each call."""
    rows: gl.constexpr = w0.shape[0]
    calls: gl.constexpr = w0.shape[1]
    even = gl.join(spread_signs(keep_signs(w0, low_bits, not_high)), spread_signs(keep_signs(w2, low_bits, not_high)))
    odd = gl.join(spread_signs(keep_signs(w1, low_bits, not_high)), spread_signs(keep_signs(w3, low_bits, not_high)))
    return gl.convert_layout(gl.join(even, odd).reshape([rows, 4 * calls]), LAYOUT, assert_trivial=True)


@gluon.jit
def pack_keep_bits(w0, w1, w2, w3, low_bits, not_high):  # type: ignore[no-untyped-def]
    """Give [M, C] uint8: bit f of call c says that feature 8 c + f is kept."""
    # Bytes 0 and 2 of a filled mask are -1 where kept: with weights -4^j and -2 4^j one dp4a adds both bits.
    bits = gl.inline_asm_elementwise(
        """{
        .reg .b32 m;
        prmt.b32 m, $1, 0, 0xBB99;
        dp4a.s32.s32 $0, m, 0x00FE00FF, 0;
        prmt.b32 m, $2, 0, 0xBB99;
        dp4a.s32.s32 $0, m, 0x00F800FC, $0;
        prmt.b32 m, $3, 0, 0xBB99;
        dp4a.s32.s32 $0, m, 0x00E000F0, $0;
        prmt.b32 m, $4, 0, 0xBB99;
        dp4a.s32.s32 $0, m, 0x008000C0, $0;
        }""",
        "=&r,r,r,r,r",
        [
            keep_signs(w0, low_bits, not_high),
            keep_signs(w1, low_bits, not_high),
            keep_signs(w2, low_bits, not_high),
            keep_signs(w3, low_bits, not_high),
        ],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )
    return bits.to(gl.uint8)
