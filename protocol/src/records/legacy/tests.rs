//! Messages of magic 0 and 1: built here by hand, because nothing of ours writes them.

use proptest::prelude::*;

use super::*;
use crate::records::compression::{Compression, compress};

fn message(magic: i8, offset: i64, attributes: u8, timestamp: i64, value: Option<&[u8]>) -> Vec<u8> {
    let mut body = vec![magic.cast_unsigned(), attributes];
    if magic == 1 {
        body.extend_from_slice(&timestamp.to_be_bytes());
    }
    body.extend_from_slice(&1_i32.to_be_bytes());
    body.push(b'k');
    match value {
        None => body.extend_from_slice(&(-1_i32).to_be_bytes()),
        Some(value) => {
            body.extend_from_slice(&i32::try_from(value.len()).unwrap().to_be_bytes());
            body.extend_from_slice(value);
        }
    }
    let mut out = offset.to_be_bytes().to_vec();
    out.extend_from_slice(&i32::try_from(body.len() + 4).unwrap().to_be_bytes());
    out.extend_from_slice(&crc::crc32(&body).to_be_bytes());
    out.extend_from_slice(&body);
    out
}

/// A wrapper around messages of times 0, 100, 200, 300, whose last offset is 73.
fn wrapper(magic: i8, codec: Codec, attributes: u8) -> Vec<u8> {
    let mut run = Vec::new();
    for i in 0..4 {
        let offset = if magic == 0 { 70 + i } else { i };
        run.extend_from_slice(&message(magic, offset, 0, i * 100, Some(&[b'v'; 40])));
    }
    let packed = compress(Compression::default_level(codec), &run, Vec::new()).unwrap();
    let attributes = attributes | u8::try_from(codec.get()).unwrap();
    message(magic, 73, attributes, 300, Some(&packed))
}

const CODECS: [Codec; 3] = [Codec::Gzip, Codec::Snappy, Codec::Lz4];

#[test]
fn a_message_is_read_in_place() {
    for magic in [0, 1] {
        let bytes = message(magic, 42, 0, 1_234, Some(b"value"));
        let view = MessageView::parse(&bytes).unwrap();
        assert!(view.crc_is_valid() && !view.is_compressed());
        assert_eq!((view.magic(), view.size_in_bytes()), (magic, bytes.len()));
        assert_eq!((view.last_offset(), view.base_offset()), (Offset::new(42), Ok(Offset::new(42))));
        assert_eq!((view.key(), view.value()), (Ok(Some(&b"k"[..])), Ok(Some(&b"value"[..]))));
        let timestamp = if magic == 0 { -1 } else { 1_234 };
        assert_eq!(view.max_timestamp(), TimestampMs::new(timestamp));
        assert_eq!(view.info().next_offset(), Offset::new(43));
        assert!(!view.info().has_producer_id());
    }
}

#[test]
fn no_flipped_bit_behind_the_size_goes_unseen() {
    let good = message(1, 42, 0, 1_234, Some(b"value"));
    for bit in 12 * 8..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(!MessageView::parse(&bad).is_ok_and(|view| view.crc_is_valid()), "{bit}");
    }
}

#[test]
fn sizes_below_the_smallest_message_and_other_magics_are_refused() {
    let mut bytes = message(1, 42, 0, 1_234, Some(b"value"));
    for size in [-1_i32, 0, 13] {
        bytes[8..12].copy_from_slice(&size.to_be_bytes());
        assert_eq!(MessageView::parse(&bytes).unwrap_err(), BatchError::BadLength(size));
    }
    bytes[8..12].copy_from_slice(&21_i32.to_be_bytes());
    assert_eq!(MessageView::parse(&bytes).unwrap_err(), BatchError::BadLength(21));
    bytes[16] = 2;
    assert_eq!(MessageView::parse(&bytes).unwrap_err(), BatchError::BadMagic(2));
    let whole = message(0, 42, 0, 0, None);
    for cut in 0..whole.len() {
        assert!(matches!(MessageView::parse(&whole[..cut]), Err(BatchError::Truncated { .. })), "{cut}");
    }
}

#[test]
fn a_wrapper_carries_its_last_offset_and_opens_to_the_first() {
    for magic in [0, 1] {
        for codec in CODECS {
            let bytes = wrapper(magic, codec, 0);
            let view = MessageView::parse(&bytes).unwrap();
            assert!(view.is_compressed() && view.crc_is_valid());
            assert_eq!(view.attributes().codec(), Some(codec));
            assert_eq!(view.last_offset(), Offset::new(73));
            assert_eq!(view.base_offset(), Ok(Offset::new(70)), "{magic} {codec:?}");
        }
    }
}

#[test]
fn the_message_within_a_wrapper_is_found_by_time() {
    for codec in CODECS {
        let bytes = wrapper(1, codec, 0);
        let view = MessageView::parse(&bytes).unwrap();
        let find =
            |time, min| view.first_record_at_or_after(TimestampMs::new(time), Offset::new(min)).unwrap();
        let hit = |offset, time| Some((Offset::new(offset), TimestampMs::new(time)));
        assert_eq!(find(150, 0), hit(72, 200), "{codec:?}");
        assert_eq!(find(0, 0), hit(70, 0));
        assert_eq!(find(0, 72), hit(72, 200));
        assert_eq!(find(301, 0), None);
        // Every message of a LogAppendTime wrapper has the wrapper's time.
        let bytes = wrapper(1, codec, 0x08);
        let view = MessageView::parse(&bytes).unwrap();
        let found = view.first_record_at_or_after(TimestampMs::new(250), Offset::ZERO).unwrap();
        assert_eq!(found, hit(70, 300));
    }
}

#[test]
fn lz4_of_magic_0_is_read_with_either_header_checksum() {
    let bytes = wrapper(0, Codec::Lz4, 0);
    let frame = bytes.windows(4).position(|four| four == [0x04, 0x22, 0x4d, 0x18]).unwrap();
    let mut old = bytes.clone();
    old[frame + 6] ^= 0x55;
    for bytes in [&bytes, &old] {
        assert_eq!(MessageView::parse(bytes).unwrap().base_offset(), Ok(Offset::new(70)));
    }
    let mut bad = wrapper(1, Codec::Lz4, 0);
    let frame = bad.windows(4).position(|four| four == [0x04, 0x22, 0x4d, 0x18]).unwrap();
    bad[frame + 6] ^= 0x55;
    let corrupt = Err(LegacyError::Decompress(DecompressError::Corrupt(Codec::Lz4)));
    assert_eq!(MessageView::parse(&bad).unwrap().base_offset(), corrupt);
}

#[test]
fn faulty_wrappers_name_their_fault() {
    let open = |bytes: Vec<u8>| MessageView::parse(&bytes).unwrap().base_offset();
    assert_eq!(open(message(1, 1, 1, 0, None)), Err(LegacyError::EmptyWrapper));
    assert_eq!(open(message(1, 1, 4, 0, Some(b"x"))), Err(LegacyError::UnknownCodec(4)));
    assert_eq!(open(message(1, 1, 7, 0, Some(b"x"))), Err(LegacyError::UnknownCodec(7)));
    let pack = |run: &[u8]| {
        let packed = compress(Compression::default_level(Codec::Gzip), run, Vec::new()).unwrap();
        message(1, 1, 1, 0, Some(&packed))
    };
    assert_eq!(open(pack(b"")), Err(LegacyError::EmptyWrapper));
    assert_eq!(open(pack(&message(1, 0, 1, 0, Some(b"x")))), Err(LegacyError::Nested));
    let other = message(0, 0, 0, 0, Some(&[0; 20]));
    assert_eq!(open(pack(&other)), Err(LegacyError::Inner(BatchError::BadMagic(0))));
    // A partial message at the end is passed over; alone it is nothing.
    let good = message(1, 0, 0, 0, Some(b"x"));
    for cut in 1..good.len() {
        assert_eq!(open(pack(&good[..cut])), Err(LegacyError::EmptyWrapper), "{cut}");
        let run = [&good[..], &good[..cut]].concat();
        assert_eq!(open(pack(&run)), Ok(Offset::new(1)), "{cut}");
    }
    // A key longer than the message.
    let mut bad = message(0, 0, 0, 0, Some(b"x"));
    bad[18..22].copy_from_slice(&100_i32.to_be_bytes());
    assert_eq!(MessageView::parse(&bad).unwrap().key(), Err(LegacyError::BadField));
}

proptest! {
    #[test]
    fn damaged_wrappers_never_panic(
        magic in 0..2_i8,
        codec in prop::sample::select(CODECS.to_vec()),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = wrapper(magic, codec, 0);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(view) = MessageView::parse(&bytes) {
            let _ = (view.crc_is_valid(), view.base_offset(), view.key(), view.value());
        }
    }
}

#[test]
fn the_messages_of_a_wrapper_are_written_by_themselves_as_they_are_read_in_it() {
    for (magic, codec, attributes) in
        CODECS.into_iter().flat_map(|codec| [(0, codec, 0), (1, codec, 0), (1, codec, 0x08)])
    {
        if (magic, codec) == (0, Codec::Lz4) {
            // Its header checksum is another one; the decompression of that is tested above.
            continue;
        }
        let bytes = wrapper(magic, codec, attributes);
        let view = MessageView::parse(&bytes).unwrap();
        let unpacked = Unpacked::of(&view).unwrap();
        let all: Vec<_> = unpacked.messages().map(Result::unwrap).collect();
        let offsets: Vec<_> = all.iter().map(|message| message.offset.get()).collect();
        assert_eq!(offsets, [70, 71, 72, 73], "magic {magic}, {codec:?}");
        let mut alone = Vec::new();
        unpacked.write(&all[2], &mut alone).unwrap();
        let view = MessageView::parse(&alone).unwrap();
        assert!(view.crc_is_valid() && !view.is_compressed());
        let timestamp = if magic == 0 {
            -1
        } else if attributes == 0 {
            200
        } else {
            300
        };
        assert_eq!(
            (view.last_offset(), view.max_timestamp()),
            (Offset::new(72), TimestampMs::new(timestamp))
        );
        assert_eq!((view.key(), view.value()), (Ok(Some(&b"k"[..])), Ok(Some(&[b'v'; 40][..]))));
    }
}

#[test]
fn a_wrapper_that_cannot_be_unpacked_says_why() {
    let nested = message(1, 0, 1, 0, Some(b"x"));
    let packed = compress(Compression::default_level(Codec::Gzip), &nested, Vec::new()).unwrap();
    let bytes = message(1, 5, 1, 0, Some(&packed));
    assert_eq!(Unpacked::of(&MessageView::parse(&bytes).unwrap()).unwrap_err(), LegacyError::Nested);
    let bytes = message(1, 5, 1, 0, None);
    assert_eq!(Unpacked::of(&MessageView::parse(&bytes).unwrap()).unwrap_err(), LegacyError::EmptyWrapper);
    let bytes = message(1, 5, 1, 0, Some(b"no gzip at all"));
    let error = Unpacked::of(&MessageView::parse(&bytes).unwrap()).unwrap_err();
    assert!(matches!(error, LegacyError::Decompress(_)), "{error}");
}
