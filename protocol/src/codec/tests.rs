use super::{
    Blob, Cursor, Layout, ListWriter, Nullable, Segment, SharedBlob, SharedList, Str, Wire, Writer,
    WrittenList, short_text,
};
use crate::error::DecodeError;
use crate::types::TopicId;

const OLD: Layout = Layout { version: 0, flexible: false };
const FLEXIBLE: Layout = Layout { version: 9, flexible: true };

message! {
    /// One of each kind of field.
    pub struct Everything<'a> {
        /// A plain field.
        0+ number: i32 = 7;
        /// Gone from version 3 on.
        0-2 old: i8, ignorable;
        /// May be null from version 1 on.
        0+ name: Option<Str<'a>> = None, null 1;
        /// A struct that may be null (KIP-893).
        2+ inner: Option<Inner> = None, null 3;
        /// Tagged.
        9+ hint: i16 = -1, tag 0;
        /// Tagged.
        9+ list: Vec<Inner>, tag 2;
    }

    /// Nested.
    pub struct Inner {
        /// An id.
        0+ id: TopicId;
    }
}

fn read<'a, T: Wire<'a>>(bytes: &'a [u8], layout: Layout) -> Result<T, DecodeError> {
    T::read(&mut Cursor::new(bytes), layout)
}

fn write<'a, T: Wire<'a>>(value: &T, layout: Layout) -> Vec<u8> {
    let mut writer = Writer::new();
    value.write(&mut writer, layout);
    writer.into_bytes().to_vec()
}

#[test]
fn varints_have_up_to_five_bytes_and_need_not_be_minimal() {
    let read = |bytes: &[u8]| Cursor::new(bytes).unsigned_varint();
    assert_eq!(read(&[0x80, 0x80, 0x00]), Ok(0));
    assert_eq!(read(&[0xac, 0x02]), Ok(300));
    assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x0f]), Ok(u32::MAX));
    assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x10]), Err(DecodeError::BadVarint));
    assert_eq!(read(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00]), Err(DecodeError::BadVarint));
    assert_eq!(read(&[0x80]), Err(DecodeError::Truncated { needed: 1, left: 0 }));
}

#[test]
fn varints_are_written_in_their_shortest_form() {
    for value in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, 0x0fff_ffff, 0x1000_0000, u32::MAX] {
        let mut writer = Writer::new();
        writer.unsigned_varint(value);
        let bits = 32 - value.leading_zeros();
        assert_eq!(writer.len(), usize::try_from(bits.div_ceil(7).max(1)).unwrap());
        assert_eq!(Cursor::new(&writer.into_bytes()).unsigned_varint(), Ok(value));
    }
}

#[test]
fn only_minus_one_is_null_and_only_where_null_is_allowed() {
    assert_eq!(read::<Option<Str>>(&[0xff, 0xff], OLD), Ok(None));
    assert_eq!(read::<Option<Str>>(&[0], FLEXIBLE), Ok(None));
    assert_eq!(read::<Option<Vec<i32>>>(&[0xff, 0xff, 0xff, 0xff], OLD), Ok(None));
    assert_eq!(read::<Str>(&[0xff, 0xff], OLD), Err(DecodeError::BadLength(-1)));
    assert_eq!(read::<Str>(&[0], FLEXIBLE), Err(DecodeError::BadLength(-1)));
    assert_eq!(read::<Vec<i32>>(&[0], FLEXIBLE), Err(DecodeError::BadLength(-1)));
    assert_eq!(read::<Option<Str>>(&[0xff, 0xfe], OLD), Err(DecodeError::BadLength(-2)));
    assert_eq!(read::<Vec<i32>>(&[0x80, 0, 0, 0], OLD), Err(DecodeError::BadLength(i32::MIN.into())));
    assert_eq!(Cursor::new(&[0xff; 4]).nullable_bytes(false), Ok(None));
}

#[test]
fn empty_is_not_null() {
    assert_eq!(read::<Option<Str>>(&[0, 0], OLD), Ok(Some("".into())));
    assert_eq!(read::<Option<Vec<i8>>>(&[1], FLEXIBLE), Ok(Some(Vec::new())));
    assert_eq!(write(&Some(Str::from("")), FLEXIBLE), [1]);
    assert_eq!(write(&None::<Str>, FLEXIBLE), [0]);
    assert_eq!(write(&None::<Vec<i8>>, OLD), [0xff; 4]);
}

#[test]
fn strings_are_utf8_of_at_most_32767_bytes() {
    assert_eq!(read::<Str>(&[0, 2, 0xc3, 0x28], OLD), Err(DecodeError::BadUtf8));
    assert_eq!(read::<Str>(&[0, 2, 0xc3, 0xa4], OLD), Ok("ä".into()));
    let mut long = vec![0x81, 0x80, 0x02];
    long.resize(40_000, b'x');
    assert_eq!(read::<Str>(&long, FLEXIBLE), Err(DecodeError::BadLength(0x8000)));
}

#[test]
fn an_array_count_is_compared_with_the_frame_before_anything_is_allocated() {
    let hostile = [0xff, 0xff, 0xff, 0xff, 0x07, 1, 2, 3];
    let error = read::<Vec<i64>>(&hostile, FLEXIBLE).unwrap_err();
    assert!(matches!(error, DecodeError::Truncated { needed, left: 3 } if needed > 1 << 30), "{error}");
    assert_eq!(read::<Vec<i64>>(&[0xff, 0xff, 0xff, 0xff, 0x0f], FLEXIBLE), {
        Err(DecodeError::BadLength(0xffff_fffe))
    });
}

#[test]
fn tiny_elements_of_large_structs_do_not_amplify() {
    // 24 bytes of memory for each empty string of one byte.
    let mut frame = vec![0x81, 0x80, 0x40];
    frame.resize(3 + (1 << 20), 1);
    let error = read::<Vec<Str>>(&frame, FLEXIBLE).unwrap_err();
    assert!(matches!(error, DecodeError::Oversized { .. }), "{error}");
    let few = [&[101], [1; 100].as_slice()].concat();
    assert_eq!(read::<Vec<Str>>(&few, FLEXIBLE).unwrap().len(), 100);
}

#[test]
fn tags_are_read_in_any_order_but_only_once() {
    let read = |section: &[u8]| {
        let mut bytes = vec![0, 0, 0, 7, 0, 0xff];
        bytes.extend_from_slice(section);
        Everything::read(&mut Cursor::new(&bytes), FLEXIBLE).map(|value| (value.hint, value.list.len()))
    };
    assert_eq!(read(&[0]), Ok((-1, 0)));
    assert_eq!(read(&[2, 2, 1, 1, 0, 2, 0, 5]), Ok((5, 0)));
    assert_eq!(read(&[3, 200, 1, 1, 9, 7, 0, 0, 2, 0, 5]), Ok((5, 0)));
    assert_eq!(read(&[2, 0, 2, 0, 5, 0, 2, 0, 5]), Err(DecodeError::RepeatedTag(0)));
    assert_eq!(read(&[2, 200, 1, 0, 200, 1, 0]), Err(DecodeError::RepeatedTag(200)));
    assert_eq!(read(&[1, 0, 3, 0, 5, 0]), Err(DecodeError::BadTagSize(0)));
    assert_eq!(read(&[1, 0, 1, 0, 5]), Err(DecodeError::BadTagSize(0)));
    assert_eq!(read(&[1, 9, 3, 0]), Err(DecodeError::Truncated { needed: 3, left: 1 }));
}

#[test]
fn a_section_of_unknown_tags_in_the_worst_order_is_read_in_reasonable_time() {
    let mut writer = Writer::new();
    writer.unsigned_varint(200_000);
    for tag in (1000..201_000).rev() {
        writer.unsigned_varint(tag);
        writer.unsigned_varint(0);
    }
    let bytes = writer.into_bytes();
    let mut cursor = Cursor::new(&bytes);
    assert_eq!(cursor.tagged_fields(|_, _| Ok(false)), Ok(()));
    assert_eq!(cursor.position(), bytes.len());
}

#[test]
fn a_tag_at_its_default_is_not_written_and_others_ascend() {
    let mut value = Everything::default();
    assert_eq!(write(&value, FLEXIBLE), [0, 0, 0, 7, 0, 0xff, 0]);
    value.hint = 3;
    value.list = vec![Inner::default()];
    let bytes = write(&value, FLEXIBLE);
    assert_eq!(bytes[6..11], [2, 0, 2, 0, 3]);
    assert_eq!(bytes[11..14], [2, 18, 2]);
    assert_eq!(read::<Everything>(&bytes, FLEXIBLE), Ok(value));
}

#[test]
fn fields_outside_their_versions_are_not_on_the_wire() {
    let layout = |version| Layout { version, flexible: false };
    let value = Everything { old: 5, ..Everything::default() };
    assert_eq!(write(&value, layout(1)), [0, 0, 0, 7, 5, 0xff, 0xff]);
    assert_eq!(write(&value, layout(3)), [0, 0, 0, 7, 0xff, 0xff, 0xff]);
    assert_eq!(read::<Everything>(&[0, 0, 0, 1, 0xff, 0xff, 0xff], layout(3)).map(|value| value.old), Ok(0));
}

#[test]
#[should_panic(expected = "Everything.hint is not in the version")]
fn a_field_that_the_version_cannot_carry_is_a_bug() {
    write(&Everything { hint: 3, name: Some("".into()), ..Everything::default() }, OLD);
}

/// In every build: what the version cannot say is known before it is sent.
#[test]
fn what_does_not_fit_the_version_is_noted() {
    let misfit = |value: &Everything<'_>, layout| {
        let mut writer = Writer::new();
        value.write(&mut writer, layout);
        writer.misfit()
    };
    let named = Everything { name: Some("".into()), ..Everything::default() };
    assert_eq!(misfit(&named, OLD), None);
    let hint = Everything { hint: 3, ..named.clone() };
    assert_eq!(misfit(&hint, OLD), Some("Everything.hint is not in the version"));
    assert_eq!(misfit(&Everything { name: None, ..named }, OLD), Some("null where the version has none"));
    let long = "x".repeat(40_000);
    let mut writer = Writer::new();
    writer.nullable_string(Some(&short_text(long.clone())), true);
    assert_eq!(writer.misfit(), None);
    writer.tagged_field(1, |writer| writer.nullable_string(Some(&long), true));
    assert_eq!(writer.misfit(), Some("a string of more than 32767 bytes"));
}

#[test]
fn nullable_structs_have_a_presence_byte() {
    let layout = Layout { version: 3, flexible: false };
    let mut writer = Writer::new();
    Inner::write_nullable(Some(&Inner::default()), &mut writer, layout);
    Inner::write_nullable(None, &mut writer, layout);
    let mut bytes = writer.into_bytes();
    assert_eq!((bytes[0], bytes[17]), (1, 0xff));
    let mut cursor = Cursor::new(&bytes);
    assert_eq!(Inner::read_nullable(&mut cursor, layout), Ok(Some(Inner::default())));
    assert_eq!(Inner::read_nullable(&mut cursor, layout), Ok(None));
    bytes[0] = 2;
    assert_eq!(Inner::read_nullable(&mut Cursor::new(&bytes), layout), Err(DecodeError::BadPresence(2)));
    // Before null was allowed there is no such byte.
    let before = Layout { version: 2, flexible: false };
    let value = Everything { name: Some("".into()), inner: Some(Inner::default()), ..Everything::default() };
    assert_eq!(write(&value, before).len(), 4 + 1 + 2 + 16);
    assert_eq!(read::<Everything>(&write(&value, before), before), Ok(value));
}

#[test]
fn foreign_bytes_cut_the_message_into_segments() {
    let mut writer = Writer::new();
    writer.put_foreign(3);
    writer.put(b"ab");
    writer.put_foreign(1000);
    writer.put_foreign(0);
    writer.put_foreign(5);
    writer.put(b"cd");
    assert_eq!(writer.len(), 1012);
    let segments = writer.into_segments();
    assert_eq!(segments.bytes, 1012);
    assert_eq!(
        segments.segments,
        [
            Segment::Foreign(3),
            Segment::Bytes("ab".into()),
            Segment::Foreign(1000),
            Segment::Foreign(5),
            Segment::Bytes("cd".into()),
        ]
    );
}

#[test]
fn a_frame_starts_with_the_size_of_the_rest() {
    let mut writer = Writer::new();
    writer.put(b"abc");
    assert_eq!(&writer.into_frame()[..], b"\0\0\0\x03abc");
}

#[test]
fn error_codes_are_told_as_the_version_carries_them() {
    use crate::messages::{
        FindCoordinatorResponse, Message, MetadataResponse, MetadataResponsePartition, MetadataResponseTopic,
    };
    let partition = |error_code| MetadataResponsePartition { error_code, ..Default::default() };
    let topic = MetadataResponseTopic {
        error_code: 5,
        partitions: vec![partition(0), partition(9)],
        ..Default::default()
    };
    let metadata = MetadataResponse { topics: vec![topic], ..Default::default() };
    let told = |version| {
        let mut codes = Vec::new();
        metadata.each_error_code(version, |code, times| {
            codes.extend(vec![code; usize::try_from(times).unwrap()]);
        });
        codes
    };
    assert_eq!(told(12), [5, 0, 9]);
    assert_eq!(told(13), [5, 0, 9, 0], "version 13 has one for the whole answer too");
    let mut count = 0;
    FindCoordinatorResponse { error_code: 15, ..Default::default() }.each_error_code(4, |_, _| count += 1);
    assert_eq!(count, 0, "version 4 answers each key");
}

#[test]
fn error_codes_of_a_list_that_was_written_are_told_too() {
    use crate::messages::{
        Message, OffsetFetchResponse, OffsetFetchResponsePartition, OffsetFetchResponseTopic,
    };
    let layout = Layout::of(crate::api::ApiKey::OffsetFetch, 7);
    let mut partitions = ListWriter::new(layout);
    for error_code in [0, 88, 0, 3, 88, 0] {
        partitions.push(&OffsetFetchResponsePartition { error_code, ..Default::default() });
    }
    let topic = OffsetFetchResponseTopic { name: "t".into(), partitions: partitions.finish() };
    let response = OffsetFetchResponse { topics: vec![topic], error_code: 15, ..Default::default() };
    let mut told = Vec::new();
    response.each_error_code(7, |code, times| told.push((code, times)));
    told.sort_unstable();
    assert_eq!(told, [(0, 3), (3, 1), (15, 1), (88, 2)]);
}

#[test]
fn a_list_that_is_written_once_stands_in_many_places_and_its_bytes_are_not_copied() {
    use crate::messages::{DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym};
    let synonym = |source| DescribeConfigsSynonym { name: "s".into(), value: None, source };
    let config = |name: usize| DescribeConfigsResourceResult {
        name: name.to_string().into(),
        value: Some("v".repeat(400).into()),
        synonyms: vec![synonym(1), synonym(5)],
        ..Default::default()
    };
    for layout in [Layout { version: 1, flexible: false }, Layout { version: 4, flexible: true }] {
        let configs: Vec<_> = (0..20).map(config).collect();
        let list = WrittenList::new(configs.iter().cloned(), layout);
        let of = |configs| DescribeConfigsResult { configs, ..Default::default() };
        let (first, third) = (configs[1].clone(), configs[3].clone());
        let mut growing = ListWriter::new(layout);
        configs.iter().for_each(|config| growing.push(config));
        for (shared, plain) in [
            (growing.finish(), SharedList::from(configs.clone())),
            (ListWriter::new(layout).finish(), SharedList::initial()),
            (list.all(), SharedList::from(configs)),
            (list.some([1, 99, 3]), vec![first, third].into()),
            (list.some([]), SharedList::initial()),
        ] {
            let (mut one, mut other) = (Writer::new(), Writer::new());
            of(shared).write(&mut one, layout);
            of(plain.clone()).write(&mut other, layout);
            assert_eq!(one.len(), other.len());
            let written: Vec<u8> = pieces(one).concat();
            assert_eq!(written, &other.into_bytes()[..]);
            assert_eq!(read::<DescribeConfigsResult<'_>>(&written, layout).unwrap().configs, plain);
        }
        let mut writer = Writer::new();
        for _ in 0..2 {
            of(list.all()).write(&mut writer, layout);
        }
        let pieces = pieces(writer);
        let large: Vec<_> = pieces.iter().filter(|piece| piece.len() == list.bytes()).collect();
        assert_eq!((large.len(), large[0].as_ptr()), (2, large[1].as_ptr()));
    }
    let mut writer = Writer::new();
    let list = WrittenList::new([1i64], Layout { version: 0, flexible: false });
    list.all::<i64>().write(&mut writer, Layout { version: 1, flexible: false });
    assert!(writer.misfit().is_some(), "it was written for another version");
}

#[test]
fn shared_bytes_are_written_as_others_are_and_stay_where_they_are_if_they_are_large() {
    for layout in [OLD, FLEXIBLE] {
        for len in [0, 1, 127, 512, 513, 100_000] {
            let bytes = bytes::Bytes::from(vec![7; len]);
            let (mut one, mut other) = (Writer::new(), Writer::new());
            SharedBlob::from(bytes.clone()).write(&mut one, layout);
            Blob::from(&bytes[..]).write(&mut other, layout);
            let one = pieces(one);
            let written = one.concat();
            assert_eq!(written, &other.into_bytes()[..]);
            assert_eq!(read::<SharedBlob<'_>>(&written, layout).unwrap(), SharedBlob::from(&bytes[..]));
            let is_copied = one.iter().all(|piece| piece.as_ptr() != bytes.as_ptr());
            assert_eq!(is_copied, len <= 512, "{len}");
        }
    }
}

fn pieces(writer: Writer) -> Vec<bytes::Bytes> {
    let bytes = |segment| match segment {
        Segment::Bytes(bytes) => bytes,
        Segment::Foreign(_) => panic!("nobody holds bytes"),
    };
    writer.into_segments().segments.into_iter().map(bytes).collect()
}
