//! Codecs: round trips, foreign framings, damage, bombs.

use proptest::prelude::*;

use super::*;

/// Every codec, with the levels at both ends.
const COMPRESSIONS: [Compression; 11] = [
    Compression::None,
    Compression::Gzip { level: -1 },
    Compression::Gzip { level: 1 },
    Compression::Gzip { level: 9 },
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd { level: 3 },
    Compression::Zstd { level: -131_072 },
    Compression::Zstd { level: 1 },
    Compression::Zstd { level: 12 },
    Compression::Zstd { level: i32::MAX },
];

/// Text that compresses about as well as records do.
fn text(size: usize) -> Vec<u8> {
    let mut state = 7_u32;
    let mut out = Vec::with_capacity(size + 16);
    while out.len() < size {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        out.extend_from_slice(format!("key-{} ", (state >> 20) % 500).as_bytes());
    }
    out.truncate(size);
    out
}

fn decompress(codec: Codec, input: &[u8]) -> Result<Vec<u8>, DecompressError> {
    let mut reader = Decompressor::new(codec, input.len())?;
    drain(&mut reader, input)
}

fn drain(reader: &mut Decompressor, input: &[u8]) -> Result<Vec<u8>, DecompressError> {
    let mut out = Vec::new();
    loop {
        let chunk = reader.next_chunk(input)?;
        if chunk.is_empty() {
            return Ok(out);
        }
        out.extend_from_slice(chunk);
    }
}

#[test]
fn every_codec_and_level_gives_back_what_was_written() {
    for size in [0, 1, 100, 32 * 1024, 32 * 1024 + 1, 64 * 1024, 200_000, 300_001] {
        let bytes = text(size);
        for compression in COMPRESSIONS {
            let packed = compress(compression, &bytes, b"before".to_vec()).unwrap();
            assert_eq!(&packed[..6], b"before");
            let packed = &packed[6..];
            assert_eq!(decompress(compression.codec(), packed), Ok(bytes.clone()), "{compression:?} {size}");
            // The lowest level of zstd is so fast that it hardly looks for repeats.
            let packs = !matches!(compression, Compression::None | Compression::Zstd { level: -131_072 });
            if size > 1_000 && packs {
                assert!(packed.len() < size, "{compression:?} does not compress");
            }
        }
    }
}

#[test]
fn pieces_that_are_written_do_not_matter() {
    let bytes = text(150_000);
    for codec in Codec::ALL {
        let compression = Compression::default_level(codec);
        let mut writer = Compressor::new(compression, Vec::new(), None).unwrap();
        for piece in bytes.chunks(7_001) {
            writer.write(piece).unwrap();
        }
        assert!(writer.output_len() <= bytes.len());
        let packed = writer.finish().unwrap();
        assert_eq!(decompress(compression.codec(), &packed).as_ref(), Ok(&bytes), "{compression:?}");
    }
}

#[test]
fn bytes_that_do_not_compress_are_kept() {
    let mut state = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    })
    .take(200_000)
    .collect();
    for compression in COMPRESSIONS {
        let packed = compress(compression, &noise, Vec::new()).unwrap();
        assert_eq!(decompress(compression.codec(), &packed).as_ref(), Ok(&noise), "{compression:?}");
    }
}

#[test]
fn streams_cut_at_any_byte_are_refused() {
    let bytes = text(70_000);
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let packed = compress(Compression::default_level(codec), &bytes, Vec::new()).unwrap();
        let step = (packed.len() / 300).max(1);
        for cut in (0..20).chain((20..packed.len()).step_by(step)) {
            let got = decompress(codec, &packed[..cut]);
            // Xerial's framing has no end mark, so a cut between two blocks shows only in the number of records.
            let cut_between_blocks =
                codec == Codec::Snappy && got.as_ref().is_ok_and(|out| out.len() < 70_000);
            assert!(got.is_err() || cut_between_blocks, "{codec:?} cut at {cut}");
        }
    }
}

#[test]
fn damaged_streams_never_panic() {
    let bytes = text(1_000);
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let packed = compress(Compression::default_level(codec), &bytes, Vec::new()).unwrap();
        for at in 0..packed.len() {
            for flip in [0x01, 0xff] {
                let mut bad = packed.clone();
                bad[at] ^= flip;
                let _ = decompress(codec, &bad);
            }
        }
    }
}

#[test]
fn gzip_may_have_several_members_and_a_tail_java_ignores() {
    let mut packed = compress(Compression::default_level(Codec::Gzip), b"one ", Vec::new()).unwrap();
    packed = compress(Compression::default_level(Codec::Gzip), b"", packed).unwrap();
    packed = compress(Compression::default_level(Codec::Gzip), b"two", packed).unwrap();
    assert_eq!(decompress(Codec::Gzip, &packed).unwrap(), b"one two");
    packed.extend_from_slice(&[0, 0, 0]);
    assert_eq!(decompress(Codec::Gzip, &packed).unwrap(), b"one two");
    // A checksum that is wrong is found.
    let mut packed = compress(Compression::default_level(Codec::Gzip), b"one", Vec::new()).unwrap();
    let crc = packed.len() - 8;
    packed[crc] ^= 1;
    assert_eq!(decompress(Codec::Gzip, &packed), Err(DecompressError::Corrupt(Codec::Gzip)));
}

#[test]
fn snappy_is_read_raw_and_in_xerial_blocks_of_any_number() {
    let bytes = text(200_000);
    let raw = snap::raw::Encoder::new().compress_vec(&bytes).unwrap();
    assert_eq!(decompress(Codec::Snappy, &raw).as_ref(), Ok(&bytes));
    let framed = compress(Compression::Snappy, &bytes, Vec::new()).unwrap();
    assert_eq!(&framed[..16], b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01");
    // Seven blocks of 32 KiB hold 200,000 bytes.
    let mut blocks = 0;
    let mut rest = &framed[16..];
    while let Some((size, after)) = rest.split_first_chunk::<4>() {
        rest = &after[usize::try_from(u32::from_be_bytes(*size)).unwrap()..];
        blocks += 1;
    }
    assert_eq!(blocks, 7);
    // Two streams put together.
    let twice = [&framed[..], &framed[..]].concat();
    assert_eq!(decompress(Codec::Snappy, &twice).unwrap().len(), 400_000);
}

#[test]
fn a_snappy_block_that_claims_too_much_costs_nothing() {
    // The length of a raw block, 2^32 - 1, and nothing behind it.
    let raw = [0xff, 0xff, 0xff, 0xff, 0x0f, 0x00];
    assert_eq!(decompress(Codec::Snappy, &raw), Err(DecompressError::Corrupt(Codec::Snappy)));
    // 101 MiB, behind enough bytes to be possible.
    let mut raw = vec![0x80, 0x80, 0xc0, 0x32];
    raw.resize(5 << 20, 0);
    assert_eq!(decompress(Codec::Snappy, &raw), Err(DecompressError::TooLarge { max: 104_857_600 }));
    let mut framed = XERIAL.to_vec();
    framed.extend_from_slice(&i32::MAX.to_be_bytes());
    assert_eq!(decompress(Codec::Snappy, &framed), Err(DecompressError::Truncated(Codec::Snappy)));
    framed.truncate(16);
    framed.extend_from_slice(&(-5_i32).to_be_bytes());
    assert_eq!(decompress(Codec::Snappy, &framed), Err(DecompressError::Corrupt(Codec::Snappy)));
}

const XERIAL: &[u8; 16] = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";

fn lz4_frame(info: lz4_flex::frame::FrameInfo, bytes: &[u8]) -> Vec<u8> {
    let mut writer = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

#[test]
fn lz4_frames_of_every_independent_kind_are_read() {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameInfo};
    let bytes = text(1_000_000).repeat(5);
    for size in [BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max1MB, BlockSize::Max4MB] {
        for checks in [false, true] {
            let info = FrameInfo::new()
                .block_mode(BlockMode::Independent)
                .block_size(size)
                .block_checksums(checks)
                .content_checksum(checks)
                .content_size(checks.then_some(5_000_000));
            assert_eq!(decompress(Codec::Lz4, &lz4_frame(info, &bytes)).as_ref(), Ok(&bytes));
        }
    }
}

#[test]
fn lz4_with_linked_blocks_is_refused() {
    use lz4_flex::frame::{BlockMode, FrameInfo};
    let frame = lz4_frame(FrameInfo::new().block_mode(BlockMode::Linked), &text(200_000));
    assert_eq!(decompress(Codec::Lz4, &frame), Err(DecompressError::LinkedBlocks));
}

#[test]
fn lz4_checksums_of_header_and_block_are_checked_and_that_of_the_content_is_not() {
    use lz4_flex::frame::FrameInfo;
    let bytes = text(1_000);
    let good = lz4_frame(FrameInfo::new().block_checksums(true).content_checksum(true), &bytes);
    let last = good.len() - 1;
    for (at, verdict) in [
        (6, Err(DecompressError::Corrupt(Codec::Lz4))),
        // The block's checksum ends before end mark and content checksum.
        (last - 8, Err(DecompressError::Corrupt(Codec::Lz4))),
        (last, Ok(bytes.clone())),
    ] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert_eq!(decompress(Codec::Lz4, &bad), verdict, "{at}");
    }
}

#[test]
fn lz4_of_magic_0_is_read_with_the_checksum_of_old_clients_too() {
    let bytes = text(1_000);
    let standard = compress(Compression::Lz4, &bytes, Vec::new()).unwrap();
    let mut old = standard.clone();
    // Old clients hashed the frame's magic too.
    old[6] = super::xxh32::xxh32(&old[..6]).to_le_bytes()[1];
    assert_ne!(old, standard);
    assert_eq!(decompress(Codec::Lz4, &old), Err(DecompressError::Corrupt(Codec::Lz4)));
    for frame in [&old, &standard] {
        let mut reader = Decompressor::lz4_with(HeaderChecksum::Ignored, frame.len());
        assert_eq!(drain(&mut reader, frame).as_ref(), Ok(&bytes));
    }
}

#[test]
fn zstd_may_have_several_frames_and_a_skippable_one() {
    let mut packed = compress(Compression::default_level(Codec::Zstd), b"one ", Vec::new()).unwrap();
    packed.extend_from_slice(&0x184d_2a50_u32.to_le_bytes());
    packed.extend_from_slice(&3_u32.to_le_bytes());
    packed.extend_from_slice(b"xyz");
    packed = compress(Compression::default_level(Codec::Zstd), b"two", packed).unwrap();
    assert_eq!(decompress(Codec::Zstd, &packed).unwrap(), b"one two");
}

#[test]
fn a_bomb_ends_at_the_cap_without_being_held() {
    let zeros = vec![0; 1 << 20];
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let mut writer = Compressor::new(Compression::default_level(codec), Vec::new(), None).unwrap();
        for _ in 0..16 {
            writer.write(&zeros).unwrap();
        }
        let packed = writer.finish().unwrap();
        let max = 5_000_000;
        let mut reader = Decompressor::with_max(codec, max).unwrap();
        let mut seen = 0;
        let error = loop {
            match reader.next_chunk(&packed) {
                Ok(chunk) => {
                    assert!((1..=WINDOW_BYTES).contains(&chunk.len()));
                    seen += chunk.len();
                }
                Err(error) => break error,
            }
        };
        assert_eq!(error, DecompressError::TooLarge { max });
        assert!(seen <= 5_000_000, "{codec:?}");
    }
}

#[test]
fn the_cap_is_never_below_what_could_be_sent_uncompressed() {
    assert_eq!(decompressed_bytes_max(0), 104_857_600);
    assert_eq!(decompressed_bytes_max(1_048_588), 104_858_800);
    assert_eq!(decompressed_bytes_max(10 << 20), 1_048_576_000);
    assert_eq!(decompressed_bytes_max(usize::MAX), 2_147_483_647);
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_read_but_never_panic(
        codec in prop::sample::select(vec![Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd]),
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = decompress(codec, &bytes);
    }
}
