//! Variable-length integers as records use them: zigzag, at most 5 bytes for `int` and 10 for `long` (protocol.md C4).
//! Encodings longer than needed are accepted within these limits, as Java does. Private to [`super`]; the unsigned
//! varints of messages live in `crate::codec`.

/// Why no integer could be read. Small and `Copy`, so that the walk stays in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VarintError {
    /// The bytes end inside the integer.
    Truncated,
    /// The integer does not end within its limit, or its last byte has bits that do not fit.
    TooLong,
}

/// Reads a zigzag `int` from the front of `bytes`; answers it with what follows.
#[inline]
pub(super) fn read_varint(bytes: &[u8]) -> Result<(i32, &[u8]), VarintError> {
    // Nearly all of them are lengths and deltas below 64.
    if let [first, rest @ ..] = bytes
        && *first < 0x80
    {
        return Ok((unzigzag32(u32::from(*first)), rest));
    }
    let mut value = 0_u32;
    let mut rest = bytes;
    for shift in [0, 7, 14, 21, 28] {
        let [byte, after @ ..] = rest else { return Err(VarintError::Truncated) };
        if shift == 28 && *byte > 0x0f {
            return Err(VarintError::TooLong);
        }
        value |= u32::from(*byte & 0x7f) << shift;
        rest = after;
        if *byte < 0x80 {
            return Ok((unzigzag32(value), rest));
        }
    }
    Err(VarintError::TooLong)
}

/// Reads a zigzag `long` from the front of `bytes`; answers it with what follows.
#[inline]
pub(super) fn read_varlong(bytes: &[u8]) -> Result<(i64, &[u8]), VarintError> {
    if let [first, rest @ ..] = bytes
        && *first < 0x80
    {
        return Ok((unzigzag64(u64::from(*first)), rest));
    }
    let mut value = 0_u64;
    let mut rest = bytes;
    for shift in [0, 7, 14, 21, 28, 35, 42, 49, 56, 63] {
        let [byte, after @ ..] = rest else { return Err(VarintError::Truncated) };
        if shift == 63 && *byte > 0x01 {
            return Err(VarintError::TooLong);
        }
        value |= u64::from(*byte & 0x7f) << shift;
        rest = after;
        if *byte < 0x80 {
            return Ok((unzigzag64(value), rest));
        }
    }
    Err(VarintError::TooLong)
}

/// Appends a zigzag `int`, in its shortest form.
pub(super) fn write_varint(out: &mut Vec<u8>, value: i32) {
    write_varlong(out, i64::from(value));
}

/// Appends a zigzag `long`, in its shortest form. The zigzag of an `int` is the same number in both widths.
pub(super) fn write_varlong(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest >= 0x80 {
        out.push(low_byte(rest) | 0x80);
        rest >>= 7;
    }
    out.push(low_byte(rest));
}

/// Bytes that `value` takes in its shortest form.
pub(super) fn varlong_size(value: i64) -> usize {
    let zigzag = ((value << 1) ^ (value >> 63)).cast_unsigned();
    let bits = 64 - (zigzag | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

#[allow(clippy::cast_possible_truncation, reason = "the mask keeps the lowest byte only")]
const fn low_byte(value: u64) -> u8 {
    (value & 0xff) as u8
}

const fn unzigzag32(value: u32) -> i32 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

const fn unzigzag64(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_encodings_are_read() {
        for (bytes, value) in [
            (&[0][..], 0),
            (&[1], -1),
            (&[2], 1),
            (&[0x7f], -64),
            (&[0x80, 0x01], 64),
            (&[0xfe, 0xff, 0xff, 0xff, 0x0f], i32::MAX),
            (&[0xff, 0xff, 0xff, 0xff, 0x0f], i32::MIN),
        ] {
            assert_eq!(read_varint(bytes), Ok((value, &[][..])), "{bytes:?}");
        }
    }

    #[test]
    fn longer_encodings_than_needed_are_accepted_within_the_limit() {
        assert_eq!(read_varint(&[0x82, 0x80, 0x80, 0x80, 0x00]), Ok((1, &[][..])));
        assert_eq!(
            read_varlong(&[0x82, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00]),
            Ok((1, &[][..]))
        );
    }

    #[test]
    fn too_long_and_unterminated_integers_are_refused() {
        assert_eq!(read_varint(&[0xff, 0xff, 0xff, 0xff, 0x10]), Err(VarintError::TooLong));
        assert_eq!(read_varint(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00]), Err(VarintError::TooLong));
        assert_eq!(read_varint(&[0x80, 0x80]), Err(VarintError::Truncated));
        assert_eq!(read_varint(&[]), Err(VarintError::Truncated));
        assert_eq!(read_varlong(&[0xff; 10]), Err(VarintError::TooLong));
        assert_eq!(read_varlong(&[0xff; 9]), Err(VarintError::Truncated));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value: i64, small: i32) {
            let mut out = Vec::new();
            write_varlong(&mut out, value);
            prop_assert_eq!(out.len(), varlong_size(value));
            prop_assert_eq!(read_varlong(&out), Ok((value, &[][..])));
            out.clear();
            write_varint(&mut out, small);
            prop_assert_eq!(read_varint(&out), Ok((small, &[][..])));
        }
    }
}
