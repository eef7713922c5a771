//! The two checksums of Kafka's record formats. They are different polynomials (protocol.md C12): CRC-32C (Castagnoli)
//! guards magic 2 batches and producer snapshots, CRC-32 (IEEE) guards messages of magic 0 and 1.
//! Knows no layout: the callers ([`super::batch`], [`super::legacy`], storage's snapshots) say which bytes are covered.

use crc_fast::CrcAlgorithm;

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    low_32(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// CRC-32 (IEEE 802.3) of `bytes`.
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// The crate answers every width in a `u64`; a 32-bit checksum fills its lower half.
#[allow(clippy::cast_possible_truncation, reason = "a 32-bit CRC has no upper half")]
const fn low_32(checksum: u64) -> u32 {
    (checksum & 0xffff_ffff) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_is_castagnoli() {
        // Check value of the CRC catalogue, and the vectors of RFC 3720 B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let up: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&up), 0x46dd_794e);
        let down: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(&down), 0x113f_db5c);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn crc32c_agrees_with_a_bitwise_reference_at_every_length() {
        fn bitwise(bytes: &[u8]) -> u32 {
            let mut crc = u32::MAX;
            for byte in bytes {
                crc ^= u32::from(*byte);
                for _ in 0..8 {
                    crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
                }
            }
            !crc
        }
        let bytes: Vec<u8> = (0..1500_u32).map(|i| u8::try_from(i * i % 251).unwrap()).collect();
        for len in (0..300).chain([511, 512, 513, 1023, 1024, 1500]) {
            assert_eq!(crc32c(&bytes[..len]), bitwise(&bytes[..len]), "{len}");
        }
    }

    #[test]
    fn crc32_is_ieee() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
