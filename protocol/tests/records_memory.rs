//! Bombs: what a small batch expands to is walked in bounded memory. A process of its own, because it looks at the
//! high-water mark of the process's resident memory, which counts what C libraries allocate too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "helpers of tests, outside #[test] functions"
)]

use bytes::BytesMut;
use protocol::records::batch::BatchView;
use protocol::records::builder::BatchBuilder;
use protocol::records::compression::{Codec, Compression, Compressor, DecompressError};
use protocol::records::reader;
use protocol::records::refusal::ProduceError;
use protocol::records::validate::{CompressionRule, KeyRule, ValidationRules, validate_produced};
use protocol::types::{Offset, TimestampMs};

/// Highest resident memory of this process so far.
#[allow(clippy::disallowed_methods, reason = "a test looks at its own process")]
fn resident_kib_max() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A batch of one record, whose value is `mebibytes` of zeros.
fn bomb(codec: Codec, mebibytes: usize) -> BytesMut {
    let compression = Compression::default_level(codec);
    let mut builder = BatchBuilder::new();
    builder.push(TimestampMs::new(0), None, None, &[]);
    let mut batch = builder.build().unwrap().to_vec();
    batch.truncate(61);
    let zeros = vec![0; 1 << 20];
    let size = u64::try_from(mebibytes << 20).unwrap();
    let mut head = Vec::new();
    // Length, attributes, deltas, null key, value length; behind the value the number of headers.
    write_varint(&mut head, size + 4 + varint_size(size) + 1);
    head.extend_from_slice(&[0, 0, 0, 1]);
    write_varint(&mut head, size);
    let mut compressor = Compressor::new(compression, batch, None).unwrap();
    compressor.write(&head).unwrap();
    for _ in 0..mebibytes {
        compressor.write(&zeros).unwrap();
    }
    compressor.write(&[0]).unwrap();
    let mut batch = compressor.finish().unwrap();
    let length = i32::try_from(batch.len() - 12).unwrap();
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[21..23].copy_from_slice(&codec.get().to_be_bytes());
    let crc = protocol::records::crc::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    BytesMut::from(&batch[..])
}

fn write_varint(out: &mut Vec<u8>, value: u64) {
    let mut rest = value << 1;
    while rest >= 0x80 {
        out.push((rest & 0x7f).to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    out.push(rest.to_le_bytes()[0]);
}

fn varint_size(value: u64) -> u64 {
    let mut out = Vec::new();
    write_varint(&mut out, value);
    u64::try_from(out.len()).unwrap()
}

#[test]
fn bombs_are_walked_in_a_few_mebibytes() {
    let rules = ValidationRules {
        request_version: 9,
        max_message_bytes: 8 << 20,
        timestamp_type: protocol::records::batch::TimestampType::CreateTime,
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: i64::MAX,
        keys: KeyRule::Optional,
        compression: CompressionRule::Producer,
    };
    // A gibibyte (of gzip and zstd only: the others do not compress that well), and what is just allowed.
    let large = [bomb(Codec::Zstd, 1 << 10), bomb(Codec::Gzip, 1 << 10)];
    let allowed = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd].map(|codec| bomb(codec, 90));
    let recompressing =
        ValidationRules { compression: CompressionRule::Recompress(Compression::None), ..rules };
    let before = resident_kib_max();
    for batch in large {
        let error = validate_produced(batch, &rules, TimestampMs::new(0)).unwrap_err();
        assert!(matches!(error, ProduceError::Decompress(DecompressError::TooLarge { .. })), "{error:?}");
    }
    for batch in allowed {
        let view = BatchView::parse(&batch).unwrap();
        let found = reader::first_record_at_or_after(&view, TimestampMs::new(0), Offset::ZERO).unwrap();
        assert_eq!(found, Some((Offset::ZERO, TimestampMs::new(0))));
        let error = validate_produced(batch.clone(), &recompressing, TimestampMs::new(0)).unwrap_err();
        assert!(matches!(error, ProduceError::TooLarge { .. }), "{error:?}");
        validate_produced(batch, &rules, TimestampMs::new(0)).unwrap();
    }
    let grown = resident_kib_max() - before;
    // The recompressed output may grow up to the limit of 8 MiB before it is given up; a vector doubles.
    assert!(grown < 32 * 1024, "resident memory grew by {grown} KiB");
}
