//! What groups have committed, whichever broker they asked: groups of offsets alone, which are committed, deleted and made
//! anew at every turn, and one of a Java consumer that goes on where it has stopped. Knows no particular broker: ours and
//! Kafka are held to it in turns. `interop.rs` takes it in by path.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bench_harness::client::{Client, error_name};
use protocol::messages::*;
use tempfile::TempDir;

use crate::child::run;
use crate::{STEP_LIMIT, class_path, consumer_groups, described_offsets, directory};

/// Whatever is waited for comes long before, also on two slow cores.
const LIMIT: Duration = Duration::from_secs(120);

/// Loading, not available yet, not coordinated here: each passes soon after a start.
const PASSING: [i16; 3] = [14, 15, 16];

/// Groups of offsets alone: more than `__consumer_offsets` has partitions.
const GROUPS: u64 = 12;

/// The topic that is committed for, and read by the Java consumer; it has two partitions.
const TOPIC: &str = "kept-none";
const PARTITIONS: i32 = 2;

const READER: &str = "java-reader";
/// Records that the Java consumer reads in a turn; fewer than are sent meanwhile.
const READ_A_TURN: u32 = 40;

/// Offsets and their metadata, by partition.
type Offsets = BTreeMap<i32, (i64, String)>;

/// All groups, and what each has committed.
#[derive(Default)]
pub struct GroupTurns {
    committed: BTreeMap<String, Offsets>,
    /// The Java consumer, compiled.
    reader: Option<TempDir>,
}

impl GroupTurns {
    /// Offsets that are committed.
    pub fn offsets(&self) -> usize {
        self.committed.values().map(BTreeMap::len).sum()
    }

    /// Everything that was committed before is there; some of it changes, some goes, and more comes.
    pub fn take(&mut self, libs: &Path, at: &str, number: u64) -> Result<(), String> {
        let mut client = Client::connect(at, LIMIT).map_err(|error| error.to_string())?;
        find(&mut client)?;
        for (group, offsets) in &self.committed {
            let found = fetch(&mut client, group)?;
            if found != *offsets {
                return Err(format!("group {group} has committed {offsets:?}, and now has {found:?}"));
            }
        }
        self.compare_with_tool(libs, at)?;
        for index in (0..GROUPS).filter(|index| number == 0 || (index + number).is_multiple_of(3)) {
            let offset = i64::try_from(number * 100 + index).expect("small");
            let metadata = if index % 2 == 0 { String::new() } else { format!("turn {number}") };
            for partition in 0..PARTITIONS {
                self.commit(&mut client, &format!("offsets-{index}"), partition, (offset, metadata.clone()))?;
            }
        }
        // One that lasts until the next turn, and an offset that goes and comes with it.
        self.commit(&mut client, &format!("short-{number}"), 0, (1, "short".to_owned()))?;
        if let Some(before) = number.checked_sub(1) {
            self.delete_group(&mut client, &format!("short-{before}"))?;
            self.delete_offset(&mut client, &format!("offsets-{}", number % GROUPS), 1)?;
        }
        self.read_on(libs, at)
    }

    /// `kafka-consumer-groups --describe` shows the same.
    fn compare_with_tool(&self, libs: &Path, at: &str) -> Result<(), String> {
        let Some((group, offsets)) = self.committed.iter().next() else { return Ok(()) };
        let text = consumer_groups(libs, at, &["--describe", "--group", group, "--offsets"])?;
        let shown: Vec<_> = described_offsets(&text, group).into_iter().map(|[p, o, _]| (p, o)).collect();
        let wanted: Vec<_> = offsets.iter().map(|(p, (o, _))| (p.to_string(), o.to_string())).collect();
        if shown == wanted { Ok(()) } else { Err(format!("{wanted:?} is described as\n{text}")) }
    }

    fn commit(
        &mut self,
        client: &mut Client,
        group: &str,
        partition_index: i32,
        (committed_offset, metadata): (i64, String),
    ) -> Result<(), String> {
        let partition = OffsetCommitRequestPartition {
            partition_index,
            committed_offset,
            committed_leader_epoch: -1,
            commit_timestamp: -1,
            committed_metadata: Some(metadata.as_str().into()),
        };
        let topics = vec![OffsetCommitRequestTopic { name: TOPIC.into(), partitions: vec![partition] }];
        let request =
            OffsetCommitRequest { group_id: group.into(), topics, ..OffsetCommitRequest::default() };
        ask(&mut || {
            let reply = client.call(8, &request).map_err(|error| error.to_string())?;
            let answer: OffsetCommitResponse<'_> = reply.message().map_err(|error| error.to_string())?;
            let codes = answer.topics.iter().flat_map(|topic| &topic.partitions);
            Ok((codes.map(|part| part.error_code).find(|code| *code != 0).unwrap_or(0), ()))
        })
        .map_err(|why| format!("a commit of {group}: {why}"))?;
        let offsets = self.committed.entry(group.to_owned()).or_default();
        offsets.insert(partition_index, (committed_offset, metadata));
        Ok(())
    }

    fn delete_group(&mut self, client: &mut Client, group: &str) -> Result<(), String> {
        let request = DeleteGroupsRequest { groups_names: vec![group.into()] };
        ask(&mut || {
            let reply = client.call(2, &request).map_err(|error| error.to_string())?;
            let answer: DeleteGroupsResponse<'_> = reply.message().map_err(|error| error.to_string())?;
            Ok((answer.results.first().map_or(-1, |result| result.error_code), ()))
        })
        .map_err(|why| format!("the deletion of {group}: {why}"))?;
        // It is asked for again in the next turn, and has nothing then.
        self.committed.insert(group.to_owned(), Offsets::new());
        Ok(())
    }

    fn delete_offset(
        &mut self,
        client: &mut Client,
        group: &str,
        partition_index: i32,
    ) -> Result<(), String> {
        let partitions = vec![OffsetDeleteRequestPartition { partition_index }];
        let topics = vec![OffsetDeleteRequestTopic { name: TOPIC.into(), partitions }];
        let request = OffsetDeleteRequest { group_id: group.into(), topics };
        ask(&mut || {
            let reply = client.call(0, &request).map_err(|error| error.to_string())?;
            let answer: OffsetDeleteResponse<'_> = reply.message().map_err(|error| error.to_string())?;
            let parts = answer.topics.iter().flat_map(|topic| &topic.partitions);
            let codes = [answer.error_code].into_iter().chain(parts.map(|part| part.error_code));
            Ok((codes.into_iter().find(|code| *code != 0).unwrap_or(0), ()))
        })
        .map_err(|why| format!("the deletion of an offset of {group}: {why}"))?;
        self.committed.entry(group.to_owned()).or_default().remove(&partition_index);
        Ok(())
    }

    /// The Java consumer goes on from where it has committed.
    fn read_on(&mut self, libs: &Path, at: &str) -> Result<(), String> {
        if self.reader.is_none() {
            self.reader = Some(directory::compiled(libs, "Continues.java")?);
        }
        let classes = self.reader.as_ref().map(TempDir::path);
        let before = self.committed.get(READER).into_iter().flatten();
        let before: Vec<_> = before.map(|(partition, (offset, _))| format!("{partition}:{offset}")).collect();
        let mut reader = Command::new("java");
        reader.args(["-Xmx256m", "-cp", &class_path(libs, classes), "Continues", at, TOPIC, READER]);
        reader.args([READ_A_TURN.to_string(), before.join(" ")]);
        let text = run(&mut reader, STEP_LIMIT)?;
        let told = text.lines().filter_map(|line| line.strip_prefix("committed ")?.split_once(' '));
        let after: Offsets = told
            .filter_map(|(partition, offset)| {
                Some((partition.parse().ok()?, (offset.parse().ok()?, String::new())))
            })
            .collect();
        if after.is_empty() {
            return Err(format!("the Java consumer has committed nothing:\n{text}"));
        }
        self.committed.insert(READER.to_owned(), after);
        Ok(())
    }
}

/// Waits until there is a coordinator; the first who asks has the topic of groups made.
fn find(client: &mut Client) -> Result<(), String> {
    let request = FindCoordinatorRequest { key: READER.into(), ..FindCoordinatorRequest::default() };
    ask(&mut || {
        let reply = client.call(3, &request).map_err(|error| error.to_string())?;
        let answer: FindCoordinatorResponse<'_> = reply.message().map_err(|error| error.to_string())?;
        Ok((answer.error_code, ()))
    })
    .map_err(|why| format!("no coordinator: {why}"))
}

/// Everything that a group has committed.
fn fetch(client: &mut Client, group: &str) -> Result<Offsets, String> {
    let request = OffsetFetchRequest {
        group_id: group.into(),
        topics: None,
        require_stable: true,
        ..OffsetFetchRequest::default()
    };
    ask(&mut || {
        let reply = client.call(7, &request).map_err(|error| error.to_string())?;
        let answer: OffsetFetchResponse<'_> = reply.message().map_err(|error| error.to_string())?;
        let mut offsets = Offsets::new();
        for part in answer.topics.iter().flat_map(|topic| topic.partitions.elements()) {
            let metadata = part.metadata.as_deref().unwrap_or_default().to_owned();
            offsets.insert(part.partition_index, (part.committed_offset, metadata));
        }
        Ok((answer.error_code, offsets))
    })
    .map_err(|why| format!("the offsets of {group}: {why}"))
}

/// Asks until the answer stays.
fn ask<T>(once: &mut dyn FnMut() -> Result<(i16, T), String>) -> Result<T, String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match once()? {
            (0, answer) => return Ok(answer),
            (code, _) if PASSING.contains(&code) && Instant::now() < deadline => {}
            (code, _) => return Err(format!("answered with {}", error_name(code))),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
