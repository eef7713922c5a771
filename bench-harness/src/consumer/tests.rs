//! What a reader believes of an answer, and what it asks next. The ways of a whole run are tested with a broker that
//! errs on purpose (`tests/verification.rs`).

use super::*;
use crate::content;
use protocol::messages::{FetchableTopicResponse, PartitionData};
use protocol::types::TimestampMs;

fn assigned(partition: i32) -> Assigned {
    Assigned { partition, next_offset: 0, told_offset: None, end_offset: None }
}

fn answer(error_code: i16, partition_index: i32, partition_error: i16, records: &[u8]) -> Vec<u8> {
    let part = PartitionData {
        partition_index,
        error_code: partition_error,
        records: FetchedRecords::Bytes(records.into()),
        ..PartitionData::default()
    };
    let topic = FetchableTopicResponse {
        topic: "t".into(),
        partitions: vec![part],
        ..FetchableTopicResponse::default()
    };
    let response =
        FetchResponse { error_code, session_id: 3, responses: vec![topic], ..FetchResponse::default() };
    let mut writer = Writer::new();
    protocol::api::response_header(ApiKey::Fetch, FETCH_VERSION, 5, &mut writer);
    response.encode(&mut writer, FETCH_VERSION);
    writer.into_bytes().to_vec()
}

#[test]
fn the_records_of_an_answer_are_found_where_they_stand() {
    let frame = answer(0, 4, 0, b"records");
    let found = parts_of(&frame, 5, &[assigned(1), assigned(4)]).expect("an answer");
    let Answer::Parts { session_id, parts } = found else { panic!("parts") };
    assert_eq!((session_id, parts.len(), parts[0].0), (3, 1, 1));
    assert_eq!(&frame[parts[0].1.clone()], b"records");
}

#[test]
fn an_answer_that_cannot_be_is_refused() {
    let refused = |frame: &[u8], correlation_id| match parts_of(frame, correlation_id, &[assigned(4)]) {
        Ok(_) => panic!("an answer"),
        Err(error) => error.to_string(),
    };
    assert!(refused(&answer(0, 4, 0, b""), 6).contains("instead of request 6"));
    assert!(refused(&answer(0, 5, 0, b""), 5).contains("was not asked for"));
    assert!(refused(&answer(0, 4, 1, b""), 5).contains("OFFSET_OUT_OF_RANGE"));
    assert!(refused(&answer(-1, 4, 0, b""), 5).contains("UNKNOWN_SERVER_ERROR"));
    assert!(!refused(&answer(0, 4, 0, b"records")[..20], 5).is_empty());
    let lost = parts_of(&answer(70, 4, 0, b""), 5, &[assigned(4)]);
    assert!(matches!(lost, Ok(Answer::SessionLost)));
}

#[test]
fn offsets_go_on_without_a_gap() {
    let batch = content::batch(4, 0, 3, 40, TimestampMs::new(1)).expect("batch");
    let view = BatchView::parse(&batch).expect("whole");
    let mut read = assigned(4);
    let mut numbers = Vec::new();
    let mut show = |found: Found| {
        numbers.push((found.offset, found.stamp.map(|stamp| stamp.number), found.at));
        Ok(())
    };
    assert_eq!(check(&mut read, &view, false, 9, &mut show).expect("sound"), (3, 120));
    assert_eq!(read.next_offset, 3);
    assert_eq!(numbers, [(0, Some(0), 9), (1, Some(1), 9), (2, Some(2), 9)]);
    let again = check(&mut read, &view, false, 9, &mut |_| Ok(())).expect_err("the same again");
    assert!(again.to_string().contains("records before it"), "{again}");
    let mut gap = batch.clone();
    protocol::records::batch::set_base_offset(&mut gap, protocol::types::Offset::new(5));
    let gap = BatchView::parse(&gap).expect("whole");
    let lost = check(&mut read, &gap, false, 9, &mut |_| Ok(())).expect_err("a gap");
    assert!(lost.to_string().contains("lost"), "{lost}");
    assert_eq!(check(&mut read, &gap, true, 9, &mut |_| Ok(())).expect("of others").0, 3);
}

#[test]
fn only_what_moved_is_told_to_a_session() {
    let reading = Reading {
        topic: "t".to_owned(),
        connections: 1,
        partitions: vec![(0, 0, None), (1, 0, None)],
        bytes_max: 1,
        partition_bytes_max: 1,
        bytes_min: 1,
        wait_ms_max: 1,
        any_content: false,
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address");
    let mut consumer =
        Consumer::new(reading, Clock::start(), address, Duration::from_secs(5)).expect("connect");
    let mut asked = || {
        let outgoing = request(&consumer.reading, &mut consumer.lanes[0], 1);
        consumer.lanes[0].partitions[1].next_offset += 1;
        let mut cursor = Cursor::new(&outgoing.head[4..]);
        RequestHeader::decode(&mut cursor).expect("header");
        let request = FetchRequest::decode(&mut cursor, FETCH_VERSION).expect("request");
        let told: Vec<_> = request
            .topics
            .iter()
            .flat_map(|(_, _, partitions)| partitions.iter().map(|part| (part.partition, part.fetch_offset)))
            .collect();
        told
    };
    assert_eq!(asked(), [(0, 0), (1, 0)]);
    assert_eq!(asked(), [(1, 1)]);
}
