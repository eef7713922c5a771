//! What idle logs cost (T-18 at this level), and old record formats on disk.

use super::*;

#[test]
fn t18_idle_logs_do_nothing_and_hold_no_buffer() {
    let runtime = machine();
    let budget = TailBudget::new(1 << 20);
    let mut logs = Vec::new();
    for number in 0..50 {
        let (inside, budget) = (runtime.clone(), budget.clone());
        let log = runtime.block_on(async move {
            let partition = TopicPartition::new(TopicName::new("t"), number);
            let dir = format!("/data/t-{number}");
            let options = OpenOptions::new(LogConfig::default(), budget);
            Log::open(inside, Path::new(&dir), partition, options).await.unwrap()
        });
        append(&runtime, &log, batch(1, 100, 1));
        settle(&runtime, &log);
        logs.push(log);
    }
    runtime.run_until_idle();
    budget.evict_older(MonoTime::new(u64::MAX));
    assert_eq!(budget.used_bytes(), 0);
    let (operations, polls) = (runtime.disk().operation_count(), runtime.polls());
    runtime.advance_ms(3_600_000);
    assert_eq!(runtime.disk().operation_count(), operations, "no periodic writes");
    assert_eq!(runtime.polls(), polls, "no polling");
    let bytes =
        size_of::<Log<SimRuntime>>() + size_of::<Segment<SimRuntime>>() + size_of::<segment::Indexes>();
    assert!(bytes < 2048, "{bytes} bytes per idle log");
}

/// An uncompressed message of magic 1.
pub(super) fn old_message(offset: i64, time: i64, value: &[u8]) -> Vec<u8> {
    let mut covered = vec![1, 0];
    covered.extend(time.to_be_bytes());
    covered.extend((-1_i32).to_be_bytes());
    covered.extend(i32::try_from(value.len()).unwrap().to_be_bytes());
    covered.extend(value);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, &covered);
    let mut message = offset.to_be_bytes().to_vec();
    message.extend(i32::try_from(covered.len() + 4).unwrap().to_be_bytes());
    message.extend(u32::try_from(crc).unwrap().to_be_bytes());
    message.extend(covered);
    message
}

#[test]
fn a_log_of_the_old_format_is_recovered_read_and_continued() {
    let runtime = machine();
    let inside = runtime.clone();
    runtime.block_on(async move { inside.dir(crate::io::DirOp::CreateAll(DIR.into())).await }).unwrap();
    let mut bytes: Vec<u8> = (0..5).flat_map(|at| old_message(at, 1000 + at * 10, b"old")).collect();
    let whole = bytes.len();
    let mut broken = old_message(5, 1050, b"new");
    broken[20] ^= 1;
    bytes.extend(broken);
    runtime.disk().put(file("00000000000000000000.log"), &bytes).unwrap();
    let log = open(&runtime, options(LogConfig::default()));
    assert_eq!(log.log_end_offset(), offset(5), "the message with a wrong checksum is cut off");
    let read = try_read(&runtime, &log, 2, 1 << 20, true).unwrap();
    assert_eq!((read.base_offset, read.bytes), (offset(2), whole / 5 * 3));
    let found = run(&runtime, &log, |log| async move {
        log.offset_for_timestamp(TimestampMs::new(1025), offset(5)).await
    });
    assert_eq!(found.unwrap().map(|found| found.offset), Some(offset(3)));
    assert_eq!(append(&runtime, &log, batch(2, 10, 2000)).first_offset, offset(5));
    settle(&runtime, &log);
    assert_eq!(read_all(&runtime, &log, 5), [(5, 6, 2)]);
}
