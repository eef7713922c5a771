//! xxHash32, which LZ4 frames check their header and, optionally, their blocks with. Written here because the copy that
//! `lz4_flex` brings is not public to us; the algorithm is fixed and small.

const PRIME_1: u32 = 0x9e37_79b1;
const PRIME_2: u32 = 0x85eb_ca77;
const PRIME_3: u32 = 0xc2b2_ae3d;
const PRIME_4: u32 = 0x27d4_eb2f;
const PRIME_5: u32 = 0x1656_67b1;

/// xxHash32 of `bytes` with seed 0.
pub(super) fn xxh32(bytes: &[u8]) -> u32 {
    let (stripes, rest) = bytes.as_chunks::<16>();
    let mut hash = if stripes.is_empty() { PRIME_5 } else { hash_stripes(stripes) };
    hash = hash.wrapping_add(low_32(bytes.len()));
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        hash = hash.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(PRIME_3));
        hash = hash.rotate_left(17).wrapping_mul(PRIME_4);
    }
    for byte in rest {
        hash = hash.wrapping_add(u32::from(*byte).wrapping_mul(PRIME_5));
        hash = hash.rotate_left(11).wrapping_mul(PRIME_1);
    }
    hash = (hash ^ (hash >> 15)).wrapping_mul(PRIME_2);
    hash = (hash ^ (hash >> 13)).wrapping_mul(PRIME_3);
    hash ^ (hash >> 16)
}

fn hash_stripes(stripes: &[[u8; 16]]) -> u32 {
    let mut lanes = [PRIME_1.wrapping_add(PRIME_2), PRIME_2, 0, 0_u32.wrapping_sub(PRIME_1)];
    for stripe in stripes {
        let (words, _) = stripe.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = lane.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(PRIME_2));
            *lane = lane.rotate_left(13).wrapping_mul(PRIME_1);
        }
    }
    let [a, b, c, d] = lanes;
    let (a, b) = (a.rotate_left(1), b.rotate_left(7));
    a.wrapping_add(b).wrapping_add(c.rotate_left(12)).wrapping_add(d.rotate_left(18))
}

#[allow(clippy::cast_possible_truncation, reason = "xxHash32 takes the length modulo 2^32")]
const fn low_32(length: usize) -> u32 {
    length as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_are_met() {
        // From the xxHash specification's sanity vectors (seed 0), one below and above a stripe.
        assert_eq!(xxh32(b""), 0x02cc_5d05);
        assert_eq!(xxh32(b"a"), 0x550d_7456);
        assert_eq!(xxh32(b"abc"), 0x32d1_53ff);
        assert_eq!(xxh32(b"Nobody inspects the spammish repetition"), 0xe229_3b2f);
    }
}
