//! The requests that a schedule sends: commits of offsets by the members of groups, and heartbeats. Each knows its right
//! answer; whatever else comes is an error. When they are sent is `steady`'s.

use std::collections::VecDeque;

use anyhow::{Context, Result, bail, ensure};
use protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, OffsetCommitRequest, OffsetCommitRequestPartition,
    OffsetCommitRequestTopic, OffsetCommitResponse,
};

use super::fleet::{HEARTBEAT, Identity};
use super::lines::{Lines, decode};
use super::steady::Asking;
use crate::client::error_name;

/// Version of OffsetCommit: the newest without the errors of KIP-848.
const COMMIT: i16 = 8;

/// A group whose member commits.
#[derive(Debug)]
struct Committing {
    member: Identity,
    line: usize,
    /// The offset of the next commit.
    next: i64,
    /// The offsets on their way.
    sent: VecDeque<i64>,
    /// The last one that was acknowledged.
    acknowledged: Option<i64>,
}

/// Commits: each of a group moves the same partitions on by one.
#[derive(Debug)]
pub struct Commits {
    topic: String,
    partitions: i32,
    names: Vec<String>,
    groups: Vec<Committing>,
}

impl Commits {
    /// Commits by these members, one of each group, over the connections 0 to `lines` - 1; each of partitions
    /// `0 .. partitions`.
    pub fn new(topic: &str, partitions: i32, names: &[String], members: Vec<Identity>, lines: usize) -> Self {
        let group = |(place, member): (usize, Identity)| Committing {
            member,
            line: place % lines.max(1),
            next: 1,
            sent: VecDeque::new(),
            acknowledged: None,
        };
        let groups = members.into_iter().enumerate().map(group).collect();
        Self { topic: topic.to_owned(), partitions, names: names.to_vec(), groups }
    }

    /// What each group had acknowledged last, by its name.
    pub fn acknowledged(&self) -> impl Iterator<Item = (&str, Option<i64>)> {
        let named = move |group: &Committing| self.names.get(group.member.group).map(String::as_str);
        self.groups.iter().filter_map(move |group| Some((named(group)?, group.acknowledged)))
    }
}

impl Asking for Commits {
    fn subjects(&self) -> usize {
        self.groups.len()
    }

    fn line_of(&self, subject: usize) -> usize {
        self.groups.get(subject).map_or(0, |group| group.line)
    }

    fn ask(&mut self, lines: &mut Lines, subject: usize) -> Result<()> {
        let group = self.groups.get_mut(subject).context("a commit of nobody")?;
        let name = self.names.get(group.member.group).context("a commit of nobody")?;
        let offset = group.next;
        group.next += 1;
        group.sent.push_back(offset);
        let partition = |partition_index| OffsetCommitRequestPartition {
            partition_index,
            committed_offset: offset,
            committed_metadata: Some("".into()),
            ..Default::default()
        };
        let partitions = (0..self.partitions).map(partition).collect();
        let request = OffsetCommitRequest {
            group_id: name.as_str().into(),
            generation_id_or_member_epoch: group.member.generation,
            member_id: group.member.member_id.as_str().into(),
            group_instance_id: group.member.instance_id.as_deref().map(Into::into),
            topics: vec![OffsetCommitRequestTopic { name: self.topic.as_str().into(), partitions }],
            ..Default::default()
        };
        lines.send(group.line, COMMIT, &request)
    }

    fn take(&mut self, subject: usize, frame: &[u8]) -> Result<()> {
        let group = self.groups.get_mut(subject).context("a commit of nobody")?;
        let offset = group.sent.pop_front().context("a commit that was not sent")?;
        let answer: OffsetCommitResponse<'_> = decode(frame, COMMIT)?;
        let mut told = 0;
        for partition in answer.topics.iter().flat_map(|topic| &topic.partitions) {
            if partition.error_code != 0 {
                let name = error_name(partition.error_code);
                bail!("a commit of partition {} was answered with {name}", partition.partition_index);
            }
            told += 1;
        }
        ensure!(
            told == self.partitions,
            "a commit of {} partitions was answered for {told}",
            self.partitions
        );
        group.acknowledged = Some(offset);
        Ok(())
    }
}

/// Heartbeats: each member says that it is alive, on its own connection.
#[derive(Debug)]
pub struct Beats {
    names: Vec<String>,
    members: Vec<Identity>,
}

impl Beats {
    /// Heartbeats of these members of groups with these names.
    pub fn new(names: &[String], members: Vec<Identity>) -> Self {
        Self { names: names.to_vec(), members }
    }

    /// The members.
    pub fn members(&self) -> &[Identity] {
        &self.members
    }
}

impl Asking for Beats {
    fn subjects(&self) -> usize {
        self.members.len()
    }

    fn line_of(&self, subject: usize) -> usize {
        self.members.get(subject).map_or(0, |member| member.line)
    }

    fn ask(&mut self, lines: &mut Lines, subject: usize) -> Result<()> {
        let member = self.members.get(subject).context("a heartbeat of nobody")?;
        let name = self.names.get(member.group).context("a heartbeat of nobody")?;
        let request = HeartbeatRequest {
            group_id: name.as_str().into(),
            generation_id: member.generation,
            member_id: member.member_id.as_str().into(),
            group_instance_id: member.instance_id.as_deref().map(Into::into),
        };
        lines.send(member.line, HEARTBEAT, &request)
    }

    fn take(&mut self, subject: usize, frame: &[u8]) -> Result<()> {
        let answer: HeartbeatResponse = decode(frame, HEARTBEAT)?;
        if answer.error_code == 0 {
            return Ok(());
        }
        let group = self.members.get(subject).and_then(|member| self.names.get(member.group));
        let (group, code) = (group.map_or("", String::as_str), error_name(answer.error_code));
        bail!("a heartbeat in group {group} was answered with {code}")
    }
}

#[cfg(test)]
mod tests {
    use protocol::api::response_header;
    use protocol::codec::Writer;
    use protocol::messages::{Message, OffsetCommitResponsePartition, OffsetCommitResponseTopic};

    use super::*;

    fn member(group: usize) -> Identity {
        let member_id = format!("member-{group}");
        Identity { line: 7, group, member_id, instance_id: None, generation: 3 }
    }

    fn answer<'a, M: Message<'a>>(version: i16, message: &M) -> Vec<u8> {
        let mut writer = Writer::new();
        response_header(M::KEY, version, 0, &mut writer);
        message.encode(&mut writer, version);
        writer.into_bytes().to_vec()
    }

    fn committed(codes: &[i16]) -> Vec<u8> {
        let partition = |(code, index): (&i16, i32)| OffsetCommitResponsePartition {
            partition_index: index,
            error_code: *code,
        };
        let partitions = codes.iter().zip(0..).map(partition).collect();
        let topics = vec![OffsetCommitResponseTopic { name: "t".into(), partitions }];
        answer(COMMIT, &OffsetCommitResponse { topics, ..Default::default() })
    }

    #[test]
    fn what_was_acknowledged_last_is_remembered_and_no_error_passes() {
        let names = ["a", "b"].map(str::to_owned);
        let mut commits = Commits::new("t", 2, &names, vec![member(0), member(1)], 1);
        assert_eq!((commits.subjects(), commits.line_of(1)), (2, 0), "connections of their own");
        for offset in [1, 2] {
            commits.groups[1].sent.push_back(offset);
            commits.take(1, &committed(&[0, 0])).expect("acknowledged");
        }
        let found: Vec<_> = commits.acknowledged().collect();
        assert_eq!(found, [("a", None), ("b", Some(2))]);
        commits.groups[1].sent.push_back(3);
        let said = commits.take(1, &committed(&[0, 27])).expect_err("an error").to_string();
        assert_eq!(said, "a commit of partition 1 was answered with REBALANCE_IN_PROGRESS");
        commits.groups[1].sent.push_back(4);
        let said = commits.take(1, &committed(&[0])).expect_err("half an answer").to_string();
        assert!(said.contains("was answered for 1"), "{said}");
        assert_eq!(commits.acknowledged().nth(1), Some(("b", Some(2))));
        assert!(commits.take(0, &committed(&[0, 0])).is_err(), "nothing was sent");
    }

    #[test]
    fn any_answer_to_a_heartbeat_but_none_is_an_error() {
        let mut beats = Beats::new(&["g".to_owned()], vec![member(0)]);
        assert_eq!((beats.subjects(), beats.line_of(0)), (1, 7));
        let beaten = |error_code| answer(HEARTBEAT, &HeartbeatResponse { error_code, ..Default::default() });
        beats.take(0, &beaten(0)).expect("alive");
        let said = beats.take(0, &beaten(27)).expect_err("a rebalance").to_string();
        assert_eq!(said, "a heartbeat in group g was answered with REBALANCE_IN_PROGRESS");
    }
}
