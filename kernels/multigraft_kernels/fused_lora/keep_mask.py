"""The dropout mask inside a kernel: which features of a tile are kept, bit by bit as `counter_dropout` defines it.

Shapes   M rows of one adapter, C Philox calls of 8 features each: 8 C features
Form     a Philox word holds the 16-bit lanes of two neighbouring features, low half first, as a 32-bit word of x holds
         two 16-bit features. So for 16-bit dtypes the words are compared and applied half by half, never unpacked.
Cost     per call of 8 features 12 IMAD.WIDE, about 30 LOP3/PTX and 4 adds: 80 instructions with loads and stores of x,
         11 us of ALU pipe at T=8192 K=4096 on an H200, under the 16 us that reading x takes
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def philox_words(call, position, draw, step, key):  # type: ignore[no-untyped-def]
    """Give four uint32 [M, C] from call [C], position, draw, step [M] (uint32) and a scalar int64 key."""
    m0 = tl.full((), 0xD2511F53, tl.uint32)
    m1 = tl.full((), 0xCD9E8D57, tl.uint32)
    w0 = tl.full((), 0x9E3779B9, tl.uint32)
    w1 = tl.full((), 0xBB67AE85, tl.uint32)
    k0 = (key & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((key >> 32) & 0xFFFFFFFF).to(tl.uint32)
    # First round: the products are one number per row and one per column, so that only one word is made in full.
    p1 = draw.to(tl.uint64) * m1
    p0 = call.to(tl.uint64) * m0
    zero = tl.zeros((position.shape[0], call.shape[0]), tl.uint32)
    c0 = ((p1 >> 32).to(tl.uint32) ^ position ^ k0)[:, None] | zero
    c1 = p1.to(tl.uint32)[:, None] | zero
    c2 = ((p0 >> 32).to(tl.uint32) ^ k1)[None, :] ^ step[:, None]
    c3 = p0.to(tl.uint32)[None, :] | zero
    for _ in tl.static_range(6):
        k0 = k0 + w0
        k1 = k1 + w1
        # 64-bit products: one IMAD.WIDE each, where umulhi and a 32-bit product would be two instructions
        p1 = c2.to(tl.uint64) * m1
        p0 = c0.to(tl.uint64) * m0
        c0, c1, c2, c3 = (
            (p1 >> 32).to(tl.uint32) ^ c1 ^ k0,
            p1.to(tl.uint32),
            (p0 >> 32).to(tl.uint32) ^ c3 ^ k1,
            p0.to(tl.uint32),
        )
    return c0, c1, c2, c3


@triton.jit
def keep_signs(words, threshold):  # type: ignore[no-untyped-def]
    """Set bits 15 and 31 where the low and the high half of a word is >= threshold; the other bits are noise.

    With a half = 2^15 a + a', the threshold = 2^15 b + b': bit 15 of (half | 2^15) - b' says a' >= b', without a borrow
    out of the half; half >= threshold is (a or that) for b = 0 and (a and that) for b = 1: a majority with not b.
    """
    low_bits = ((threshold & 0x7FFF) * 0x10001).to(tl.uint32)
    not_b = tl.where(threshold < 0x8000, 0xFFFFFFFF, 0).to(tl.uint32)
    rest = (words | 0x80008000) - low_bits
    return (rest & words) | (not_b & (rest | words))


@triton.jit  # type: ignore[untyped-decorator]
def spread_signs(signs, PTX: tl.constexpr):  # type: ignore[no-untyped-def]
    """Fill each half of a word with its sign bit."""
    if PTX:
        # prmt replicates the sign of byte 1 to bytes 0 and 1, of byte 3 to bytes 2 and 3, in one instruction
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, 0, 0xBB99;", "=r,r", [signs], dtype=tl.uint32, is_pure=True, pack=1
        )
    else:  # noqa: RET505 - Triton compiles the branch that the constexpr selects
        return ((signs >> 15) & 0x00010001) * 0xFFFF


@triton.jit
def interleave_words(w0, w1, w2, w3):  # type: ignore[no-untyped-def]
    """Give [M, 4 C] with word j of call c at 4 c + j, from four [M, C]."""
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@triton.jit  # type: ignore[untyped-decorator]
def unpack_pairs(x, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Give [M, 2 P] of a 16-bit dtype from [M, P] words of two features each."""
    low = (x & 0xFFFF).to(tl.uint16).to(DTYPE, bitcast=True)
    high = (x >> 16).to(tl.uint16).to(DTYPE, bitcast=True)
    return tl.interleave(low, high)


@triton.jit  # type: ignore[untyped-decorator]
def drop_pairs(x, w0, w1, w2, w3, threshold, PTX: tl.constexpr):  # type: ignore[no-untyped-def]
    """Zero the dropped features of x, [M, 4 C] words of two features; kept ones are not scaled."""
    keep = interleave_words(
        spread_signs(keep_signs(w0, threshold), PTX),
        spread_signs(keep_signs(w1, threshold), PTX),
        spread_signs(keep_signs(w2, threshold), PTX),
        spread_signs(keep_signs(w3, threshold), PTX),
    )
    return x & keep


@triton.jit
def drop_features(x, w0, w1, w2, w3, threshold):  # type: ignore[no-untyped-def]
    """Zero the dropped features of x, [M, 8 C] of any dtype; kept ones are not scaled."""
    even = interleave_words(w0 & 0xFFFF, w1 & 0xFFFF, w2 & 0xFFFF, w3 & 0xFFFF)
    odd = interleave_words(w0 >> 16, w1 >> 16, w2 >> 16, w3 >> 16)
    lanes = tl.interleave(even, odd).to(tl.int32)
    return tl.where(lanes >= threshold, x, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def pack_keep_bits(w0, w1, w2, w3, threshold, PTX: tl.constexpr):  # type: ignore[no-untyped-def]
    """Give [M, C] uint8: bit f of call c says that feature 8 c + f is kept."""
    s0, s1 = keep_signs(w0, threshold), keep_signs(w1, threshold)
    s2, s3 = keep_signs(w2, threshold), keep_signs(w3, threshold)
    if PTX:
        # Bytes 0 and 2 of a filled mask are -1 where kept: with weights -4^j and -2 4^j one dp4a adds both bits.
        bits = tl.inline_asm_elementwise(
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
            [s0, s1, s2, s3],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
        return bits.to(tl.uint8)
    else:  # noqa: RET505 - Triton compiles the branch that the constexpr selects
        # Bits 15 and 31 of word j go to bits 2 j and 16 + 2 j; then the high ones move down beside the low ones.
        bits = ((s0 >> 15) & 0x00010001) | ((s1 >> 13) & 0x00040004)
        bits |= ((s2 >> 11) & 0x00100010) | ((s3 >> 9) & 0x00400040)
        return ((bits | (bits >> 15)) & 0xFF).to(tl.uint8)


@triton.jit  # type: ignore[untyped-decorator]
def load_kept(  # type: ignore[no-untyped-def]
    p_x,
    m_x,
    w0,
    w1,
    w2,
    w3,
    threshold,
    DTYPE: tl.constexpr,
    DROP: tl.constexpr,
    PAIRS: tl.constexpr,
    PTX: tl.constexpr,
):
    """Load [M, 8 C] features as DTYPE, with dropped ones and those outside m_x zero.

    With PAIRS (16-bit dtypes, an even number of features), p_x and m_x are [M, 4 C] words of two features.
    """
    if PAIRS:
        x = tl.load(p_x, mask=m_x, other=0).to(tl.uint32, bitcast=True)
        if DROP:
            x = drop_pairs(x, w0, w1, w2, w3, threshold, PTX)
        return unpack_pairs(x, DTYPE)
    else:  # noqa: RET505 - Triton compiles the branch that the constexpr selects
        x = tl.load(p_x, mask=m_x, other=0.0)
        if DROP:
            x = drop_features(x, w0, w1, w2, w3, threshold)
        return x
