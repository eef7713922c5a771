//! CRC-32C where the processor multiplies 256 bits without carry and has no AVX-512, for which `crc-fast` has code of its
//! own: a part of each block is folded by `vpclmulqdq`, while three streams of the `crc32` instruction take the rest. The
//! only unsafe code of this crate. Called by [`super`] alone.
//!
//! ```text
//! | n times 128 bytes, folded | stream: n times 40 bytes | stream | stream |   a block of n rounds
//! ```
//! Polynomials are kept with their bits reversed, as the instructions have them: the lowest bit of 32 is x^31. A product of
//! two such words comes out one bit too low, and the `crc32` instruction multiplies what it takes by x^32; the exponents
//! below make up for both.

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{
    __m128i, __m256i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64, _mm_cvtsi64_si128,
    _mm_cvtsi128_si64, _mm_extract_epi64, _mm_xor_si128, _mm256_castsi256_si128, _mm256_clmulepi64_epi128,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_set_epi32, _mm256_set_epi64x, _mm256_xor_si256,
};

/// Bytes that a round folds.
const FOLDED: usize = 128;

/// Bytes that a round takes of each stream. The processors that this is for are at both for about as long.
const STREAMED: usize = 40;

/// Bytes of a round.
const ROUND: usize = FOLDED + 3 * STREAMED;

/// Rounds of a block at most: what a producer's batch has at most is one block.
const ROUNDS_MAX: usize = 272;

/// Fewer bytes are left to others.
const BYTES_MIN: usize = 4 * ROUND;

/// The polynomial without its x^32.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// What stands in front of so many rounds of one, two and three streams is multiplied by these.
static SHIFTS: [[u32; 3]; ROUNDS_MAX + 1] = shifts();

const fn times_x(value: u32) -> u32 {
    (value >> 1) ^ if value & 1 == 1 { POLYNOMIAL } else { 0 }
}

/// x^n.
const fn power(n: usize) -> u32 {
    let (mut value, mut done) = (1 << 31, 0);
    while done < n {
        value = times_x(value);
        done += 1;
    }
    value
}

const fn product(a: u32, b: u32) -> u32 {
    let (mut sum, mut shifted, mut bit) = (0, a, 32);
    while bit > 0 {
        bit -= 1;
        if (b >> bit) & 1 == 1 {
            sum ^= shifted;
        }
        shifted = times_x(shifted);
    }
    sum
}

#[allow(clippy::indexing_slicing, reason = "done by the compiler")]
const fn shifts() -> [[u32; 3]; ROUNDS_MAX + 1] {
    let bits = 8 * STREAMED;
    let steps = [power(bits), power(2 * bits), power(3 * bits)];
    let mut all = [[0; 3]; ROUNDS_MAX + 1];
    all[1] = [power(bits - 33), power(2 * bits - 33), power(3 * bits - 33)];
    let mut rounds = 2;
    while rounds <= ROUNDS_MAX {
        let mut streams = 0;
        while streams < 3 {
            all[rounds][streams] = product(all[rounds - 1][streams], steps[streams]);
            streams += 1;
        }
        rounds += 1;
    }
    all
}

/// What the lower and the upper half of 128 bits are multiplied by to go on by so many bits.
const fn keys(bits: usize) -> [u32; 2] {
    [power(bits + 31), power(bits - 33)]
}

/// CRC-32C of bytes that are many enough, where the processor has what this takes.
pub(super) fn crc32c(bytes: &[u8]) -> Option<u32> {
    if bytes.len() < BYTES_MIN || !is_of_use() {
        return None;
    }
    // SAFETY: the processor was just asked for every feature that the function enables.
    Some(!unsafe { update(u32::MAX, bytes) })
}

fn is_of_use() -> bool {
    is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("sse4.2")
        && !is_x86_feature_detected!("avx512vl")
}

/// Goes on from a state with more bytes.
#[target_feature(enable = "avx2,pclmulqdq,sse4.2,vpclmulqdq")]
fn update(mut state: u32, mut bytes: &[u8]) -> u32 {
    while bytes.len() >= ROUND {
        let rounds = (bytes.len() / ROUND).min(ROUNDS_MAX);
        let (block, rest) = bytes.split_at(rounds * ROUND);
        let (folded, streams) = block.split_at(rounds * FOLDED);
        let (first, streams) = streams.split_at(rounds * STREAMED);
        let (second, third) = streams.split_at(rounds * STREAMED);
        let streams = [first.as_chunks().0, second.as_chunks().0, third.as_chunks().0];
        state = block_state(state, folded.as_chunks().0, streams);
        bytes = rest;
    }
    let (words, rest) = bytes.as_chunks::<8>();
    let mut state = u64::from(state);
    for word in words {
        state = _mm_crc32_u64(state, u64::from_le_bytes(*word));
    }
    let mut state = low_32(state);
    for byte in rest {
        state = _mm_crc32_u8(state, *byte);
    }
    state
}

/// Goes on from a state with one block: as many rounds of each.
#[target_feature(enable = "avx2,pclmulqdq,sse4.2,vpclmulqdq")]
fn block_state(state: u32, folded: &[[u8; FOLDED]], streams: [&[[u8; STREAMED]]; 3]) -> u32 {
    const FAR: [u32; 2] = keys(8 * FOLDED);
    const NEAR: [u32; 2] = keys(256);
    const NEXT: [u32; 2] = keys(128);
    let (Some((first, others)), Some([to_last, to_second, to_first])) =
        (folded.split_first(), SHIFTS.get(folded.len()))
    else {
        return state;
    };
    let [mut a, mut b, mut c, mut d] = load(first);
    a = _mm256_xor_si256(a, _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, state.cast_signed()));
    let far = both(FAR);
    let mut crcs = [0; 3];
    let [one, two, three] = streams;
    let mut rounds = one.iter().zip(two).zip(three);
    for next in others {
        if let Some(((one, two), three)) = rounds.next() {
            crcs = stream(crcs, [one, two, three]);
        }
        let next = load(next);
        a = fold(a, far, next[0]);
        b = fold(b, far, next[1]);
        c = fold(c, far, next[2]);
        d = fold(d, far, next[3]);
    }
    for ((one, two), three) in rounds {
        crcs = stream(crcs, [one, two, three]);
    }
    let near = both(NEAR);
    let last = fold(fold(fold(a, near, b), near, c), near, d);
    let (low, high) = (_mm256_castsi256_si128(last), _mm256_extracti128_si256::<1>(last));
    let next = _mm256_castsi256_si128(both(NEXT));
    let (by_low, by_high) =
        (_mm_clmulepi64_si128::<0x00>(low, next), _mm_clmulepi64_si128::<0x11>(low, next));
    let last = _mm_xor_si128(_mm_xor_si128(by_low, high), by_high);
    let (low, high) = (_mm_cvtsi128_si64(last), _mm_extract_epi64::<1>(last));
    let folded = _mm_crc32_u64(_mm_crc32_u64(0, low.cast_unsigned()), high.cast_unsigned());
    let [first, second, third] = crcs;
    let before_second = _mm_xor_si128(shifted(folded, *to_first), shifted(first, *to_second));
    let before = _mm_xor_si128(before_second, shifted(second, *to_last));
    low_32(_mm_crc32_u64(0, _mm_cvtsi128_si64(before).cast_unsigned()) ^ third)
}

/// One round of the streams.
#[inline]
#[target_feature(enable = "sse4.2")]
fn stream([mut first, mut second, mut third]: [u64; 3], rounds: [&[u8; STREAMED]; 3]) -> [u64; 3] {
    let [one, two, three] = rounds;
    let (one, two, three) = (one.as_chunks::<8>().0, two.as_chunks::<8>().0, three.as_chunks::<8>().0);
    for ((one, two), three) in one.iter().zip(two).zip(three) {
        first = _mm_crc32_u64(first, u64::from_le_bytes(*one));
        second = _mm_crc32_u64(second, u64::from_le_bytes(*two));
        third = _mm_crc32_u64(third, u64::from_le_bytes(*three));
    }
    [first, second, third]
}

/// Goes on from folded bytes to those that lie as far behind them as the keys say.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn fold(folded: __m256i, keys: __m256i, next: __m256i) -> __m256i {
    let by_low = _mm256_clmulepi64_epi128::<0x00>(folded, keys);
    let by_high = _mm256_clmulepi64_epi128::<0x11>(folded, keys);
    _mm256_xor_si256(_mm256_xor_si256(by_low, next), by_high)
}

/// A state and what it is multiplied by, 64 bits that the `crc32` instruction is to take.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn shifted(state: u64, by: u32) -> __m128i {
    _mm_clmulepi64_si128::<0x00>(_mm_cvtsi64_si128(state.cast_signed()), _mm_cvtsi64_si128(i64::from(by)))
}

/// The keys of both lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn both([low, high]: [u32; 2]) -> __m256i {
    let [low, high] = [i64::from(low), i64::from(high)];
    _mm256_set_epi64x(high, low, high, low)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; FOLDED]) -> [__m256i; 4] {
    let at = bytes.as_ptr().cast::<__m256i>();
    // SAFETY: there are four times 32 bytes, and the instruction takes them from any address.
    unsafe {
        [
            _mm256_loadu_si256(at),
            _mm256_loadu_si256(at.add(1)),
            _mm256_loadu_si256(at.add(2)),
            _mm256_loadu_si256(at.add(3)),
        ]
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the instruction leaves the upper half zero")]
const fn low_32(state: u64) -> u32 {
    (state & 0xffff_ffff) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_those_that_are_published() {
        // Of Intel's paper on CRCs with PCLMULQDQ, as fast-crc32 has them: for 16, 32 and 64 bytes.
        assert_eq!(keys(128), [0xf20c_0dfe, 0x493c_7d27]);
        assert_eq!(keys(256), [0x3da6_d0cb, 0xba4f_c28e]);
        assert_eq!(keys(512), [0x740e_ef02, 0x9e4a_ddf8]);
    }

    #[test]
    fn a_shift_of_rounds_is_a_power_of_x() {
        for rounds in [1, 2, 7, ROUNDS_MAX] {
            let bits = 8 * STREAMED * rounds;
            let powers = [power(bits - 33), power(2 * bits - 33), power(3 * bits - 33)];
            assert_eq!(SHIFTS[rounds], powers, "{rounds}");
        }
    }

    #[test]
    fn what_is_folded_agrees_with_the_other_implementation_at_every_length_and_address() {
        if !is_of_use() {
            println!("this processor has another way");
            return;
        }
        let mut random = 7u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random.to_be_bytes()[0]
        })
        .take(3 * ROUNDS_MAX * ROUND)
        .collect();
        let block = ROUNDS_MAX * ROUND;
        let lengths =
            (BYTES_MIN..BYTES_MIN + 3 * ROUND).chain(block - 20..block + 20).chain([65_203, 2 * block + 77]);
        for (at, len) in lengths.enumerate() {
            let piece = &bytes[at % 67..at % 67 + len];
            let expected = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, piece);
            assert_eq!(crc32c(piece).map(u64::from), Some(expected), "{len} bytes at {at}");
        }
        assert_eq!(crc32c(&bytes[..BYTES_MIN - 1]), None, "few bytes are left to others");
    }
}
