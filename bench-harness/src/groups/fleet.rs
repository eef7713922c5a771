//! Members that form groups, each with a connection of its own as a client has it: opens, joins, beats, restarts, and
//! knows when a group is settled. What a member does next is `member`'s, what it cost is `paused`'s.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use protocol::messages::{
    ApiVersionsRequest, ApiVersionsResponse, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest,
    JoinGroupRequestProtocol, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, MemberIdentity,
    SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse,
};

use super::assignment::{self, Candidate, PROTOCOL, PROTOCOL_TYPE};
use super::lines::{Answer, Lines, decode};
use super::member::{Ask, Awaits, Joined, Member};
use super::paused::Paused;
use crate::client::error_name;
use crate::clock::{Clock, saturated_nanos, seconds};
use crate::measure::histogram::Times;

/// Versions: the newest that Kafka 3.9 serves; of ApiVersions the one that has no body.
const API_VERSIONS: i16 = 0;
const JOIN: i16 = 9;
const SYNC: i16 = 5;
/// Version of Heartbeat.
pub const HEARTBEAT: i16 = 4;
/// Version of LeaveGroup.
pub const LEAVE: i16 = 5;

/// Connections that are opened at the same time: fewer than the backlog of 50 that Kafka listens with.
const OPENED_AT_ONCE: usize = 32;
/// How long is waited for answers when nothing is due.
const LOOK_NS: u64 = 100_000_000;

/// The groups and their members.
#[derive(Clone, Debug)]
pub struct Shape {
    /// What they read.
    pub topic: String,
    /// Its partitions.
    pub partitions: i32,
    /// Their names.
    pub groups: Vec<String>,
    /// Members of each.
    pub members: usize,
    /// Whether members give themselves a name.
    pub is_static: bool,
    /// Time without a heartbeat after which a member is gone.
    pub session_timeout_ms: i32,
    /// Time that a rebalance waits for a member.
    pub rebalance_timeout_ms: i32,
    /// Time between two heartbeats; it begins anew with each assignment.
    pub heartbeat_ns: u64,
    /// Whether members of a settled group beat: groups that are only to be there have no need of it.
    pub beats_when_settled: bool,
}

/// A member on its connection.
#[derive(Debug)]
struct Seat {
    group: usize,
    /// Its number in the group: a restarted static member has that of its predecessor.
    number: usize,
    member: Member,
    is_greeted: bool,
    joins_when_greeted: bool,
    next_beat: Option<u64>,
    is_gone: bool,
}

/// A group as its members see it.
#[derive(Clone, Debug, Default)]
struct Group {
    generation: i32,
    /// Members that have their assignment in this generation.
    held: usize,
    /// When the last JoinGroup was sent.
    joined_at: u64,
    /// When the last member got its assignment.
    settled_at: u64,
}

/// A member of a settled group, to speak for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its connection.
    pub line: usize,
    /// The place of its group.
    pub group: usize,
    /// Its id.
    pub member_id: String,
    /// The name that it gave itself.
    pub instance_id: Option<String>,
    /// The generation.
    pub generation: i32,
}

/// What a rolling restart cost.
#[derive(Clone, Debug)]
pub struct Rolled {
    /// Length.
    pub length_ns: u64,
    /// Time without an owner, summed over the partitions.
    pub paused_ns: u64,
    /// Generations that it took.
    pub generations: i32,
    /// From the end of a member until the group was stable with its successor.
    pub restart: Times,
    /// From the last JoinGroup of a rebalance until every member had its assignment.
    pub settle: Times,
}

/// The members.
#[derive(Debug)]
pub struct Fleet {
    shape: Shape,
    subscription: Vec<u8>,
    clock: Clock,
    address: SocketAddr,
    limit: Duration,
    lines: Lines,
    /// By their connection.
    seats: Vec<Seat>,
    groups: Vec<Group>,
    greeted: usize,
    beats: BinaryHeap<Reverse<(u64, usize)>>,
    /// How late heartbeats were sent.
    pub lateness: Times,
    /// The account, where there is one group.
    paused: Option<Paused>,
}

impl Fleet {
    /// Nobody yet. Nothing may take longer than `limit`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(shape: Shape, clock: Clock, address: SocketAddr, limit: Duration) -> Result<Self> {
        let alone = shape.groups.len() == 1;
        Ok(Self {
            subscription: assignment::subscription(&shape.topic),
            lines: Lines::new(clock)?,
            groups: vec![Group::default(); shape.groups.len()],
            paused: alone.then(|| Paused::new(shape.partitions, clock.now())),
            shape,
            clock,
            address,
            limit,
            seats: Vec::new(),
            greeted: 0,
            beats: BinaryHeap::new(),
            lateness: Times::new(),
        })
    }

    /// Opens a connection for each member; none has joined yet.
    ///
    /// # Errors
    /// A connection that cannot be made, or is not answered.
    pub fn recruit(&mut self) -> Result<()> {
        for group in 0..self.shape.groups.len() {
            for number in 0..self.shape.members {
                self.sit(group, number, false)?;
                if self.seats.len().is_multiple_of(OPENED_AT_ONCE) {
                    self.until_greeted()?;
                }
            }
        }
        self.until_greeted()
    }

    fn until_greeted(&mut self) -> Result<()> {
        self.until("the broker to answer new connections", |fleet| fleet.greeted == fleet.seats.len())
    }

    /// A member on a new connection.
    fn sit(&mut self, group: usize, number: usize, joins_when_greeted: bool) -> Result<usize> {
        let place = self.lines.open(self.address, self.limit)?;
        ensure!(place == self.seats.len(), "a connection without a member");
        let name = self.shape.groups.get(group).context("a member without a group")?;
        let instance_id = self.shape.is_static.then(|| format!("{name}-{number}"));
        let member = Member::new(instance_id);
        let (is_greeted, is_gone, next_beat) = (false, false, None);
        self.seats.push(Seat { group, number, member, is_greeted, joins_when_greeted, next_beat, is_gone });
        self.lines.send(place, API_VERSIONS, &ApiVersionsRequest::default())?;
        Ok(place)
    }

    /// All members join.
    ///
    /// # Errors
    /// A connection that breaks.
    pub fn join(&mut self) -> Result<()> {
        for place in 0..self.seats.len() {
            let ask = self.seats.get_mut(place).map(|seat| seat.member.join());
            ask.map_or(Ok(()), |ask| self.ask(place, ask))?;
        }
        Ok(())
    }

    /// Waits until every member of every group has its assignment in the same generation; returns when that was.
    ///
    /// # Errors
    /// An answer that is none, a broken connection, or time is up.
    pub fn until_settled(&mut self) -> Result<u64> {
        self.until("the groups to be stable", Self::is_settled)?;
        Ok(self.groups.iter().map(|group| group.settled_at).max().unwrap_or_default())
    }

    fn is_settled(&self) -> bool {
        self.groups.iter().all(|group| group.held == self.shape.members)
    }

    /// What each member that is there owns, by its id.
    pub fn owned(&self) -> impl Iterator<Item = (&str, &[i32])> {
        let there = self.seats.iter().filter(|seat| !seat.is_gone);
        there.map(|seat| (seat.member.member_id.as_str(), seat.member.partitions().unwrap_or_default()))
    }

    /// Restarts one member after the other, so many times, each when the group is stable again.
    ///
    /// # Errors
    /// An answer that is none, two owners of a partition, a broken connection, or time is up.
    pub fn roll(&mut self, restarts: u64) -> Result<Rolled> {
        let from = self.clock.now();
        let (paused_before, generation) = (self.paused_ns(from), self.generation());
        self.lateness = Times::new();
        let (mut restart, mut settle) = (Times::new(), Times::new());
        let mut there: VecDeque<usize> = (0..self.seats.len()).collect();
        let mut to = from;
        for number in 1..=restarts {
            let old = there.pop_front().context("there is nobody to restart")?;
            let begun = self.clock.now();
            there.push_back(self.restart(old).with_context(|| format!("restart {number}"))?);
            to = self.until_settled().with_context(|| format!("restart {number}"))?;
            let joined_at = self.groups.first().map_or(to, |group| group.joined_at);
            restart.record(to.saturating_sub(begun));
            settle.record(to.saturating_sub(joined_at));
        }
        Ok(Rolled {
            length_ns: to.saturating_sub(from),
            paused_ns: self.paused_ns(to).saturating_sub(paused_before),
            generations: self.generation() - generation,
            restart,
            settle,
        })
    }

    fn paused_ns(&self, now: u64) -> u64 {
        self.paused.as_ref().map_or(0, |paused| paused.total_ns(now))
    }

    fn generation(&self) -> i32 {
        self.groups.iter().map(|group| group.generation).max().unwrap_or_default()
    }

    /// Ends a member and starts its successor. A dynamic member leaves; a static one just ends, and its successor bears its
    /// name.
    fn restart(&mut self, old: usize) -> Result<usize> {
        let now = self.clock.now();
        let seat = self.seats.get_mut(old).context("nobody to restart")?;
        let (group, number) = (seat.group, seat.number);
        let held = seat.member.partitions().is_some();
        let ask = seat.member.leave();
        self.note(old, held, now)?;
        if !self.shape.is_static {
            ask.map_or(Ok(()), |ask| self.ask(old, ask))?;
            let is_gone = |fleet: &Self| fleet.seats.get(old).is_some_and(|seat| seat.is_gone);
            self.until("a member to leave", is_gone)?;
        }
        self.seats.get_mut(old).context("nobody to restart")?.is_gone = true;
        self.lines.close(old);
        self.sit(group, number, true)
    }

    /// The members of settled groups with their connections, on which no answer is due.
    ///
    /// # Errors
    /// A group that is not settled when the last answers have come.
    pub fn into_members(mut self) -> Result<(Lines, Vec<Identity>)> {
        self.beats.clear();
        self.until("the last heartbeats", |fleet| fleet.lines.unanswered() == 0)?;
        ensure!(self.is_settled(), "a group did not stay stable");
        let identity = |(line, seat): (usize, &Seat)| Identity {
            line,
            group: seat.group,
            member_id: seat.member.member_id.clone(),
            instance_id: seat.member.instance_id.clone(),
            generation: seat.member.generation,
        };
        let there = self.seats.iter().enumerate().filter(|(_, seat)| !seat.is_gone);
        let members = there.map(identity).collect();
        Ok((self.lines, members))
    }

    /// Goes on until something is done.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<()> {
        let until = self.clock.now().saturating_add(saturated_nanos(self.limit));
        let mut answers = Vec::new();
        while !done(self) {
            let now = self.clock.now();
            if now > until {
                bail!("waited {:.0} s for {what}", seconds(saturated_nanos(self.limit)));
            }
            self.beat(now)?;
            let next = self.beats.peek().map_or(u64::MAX, |Reverse((due, _))| *due);
            self.lines.wait(next.saturating_sub(now).min(LOOK_NS), &mut answers)?;
            for answer in answers.drain(..) {
                let taken = self.take(&answer);
                taken.with_context(|| format!("member {} of its groups", answer.line + 1))?;
            }
        }
        Ok(())
    }

    /// Sends the heartbeats that are due.
    fn beat(&mut self, now: u64) -> Result<()> {
        while let Some(Reverse((due, place))) =
            self.beats.peek().copied().filter(|Reverse((due, _))| *due <= now)
        {
            self.beats.pop();
            // An entry of an assignment that is over.
            let Some(seat) = self.seats.get_mut(place).filter(|seat| seat.next_beat == Some(due)) else {
                continue;
            };
            if seat.member.partitions().is_none() {
                seat.next_beat = None;
                continue;
            }
            let next = due.saturating_add(self.shape.heartbeat_ns);
            seat.next_beat = Some(next);
            self.beats.push(Reverse((next, place)));
            let is_settled =
                self.groups.get(seat.group).is_some_and(|group| group.held == self.shape.members);
            if is_settled && !self.shape.beats_when_settled {
                continue;
            }
            if let Some(ask) = seat.member.beat() {
                self.lateness.record(self.clock.now().saturating_sub(due));
                self.ask(place, ask)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, answer: &Answer) -> Result<()> {
        let (place, frame) = (answer.line, answer.frame.as_slice());
        let Some(seat) = self.seats.get_mut(place) else { bail!("an answer to nobody") };
        if !seat.is_greeted {
            let greeting: ApiVersionsResponse<'_> = decode(frame, API_VERSIONS)?;
            let code = greeting.error_code;
            ensure!(code == 0, "ApiVersions was answered with {}", error_name(code));
            (seat.is_greeted, self.greeted) = (true, self.greeted + 1);
            let ask = seat.joins_when_greeted.then(|| seat.member.join());
            return ask.map_or(Ok(()), |ask| self.ask(place, ask));
        }
        let held = seat.member.partitions().is_some();
        let ask = match seat.member.awaits() {
            Awaits::Nothing => bail!("an answer that nobody waits for"),
            Awaits::Join => {
                let answered = joined(frame)?;
                if answered.error == 0
                    && let Some(group) = self.groups.get_mut(seat.group)
                    && group.generation < answered.generation
                {
                    (group.generation, group.held) = (answered.generation, 0);
                    if let Some(paused) = &mut self.paused {
                        paused.generation_begun(answer.at, answered.generation);
                    }
                }
                Some(seat.member.joined(answered, self.shape.partitions)?)
            }
            Awaits::Sync => {
                let synced: SyncGroupResponse<'_> = decode(frame, SYNC)?;
                let partitions = assignment::decode(&synced.assignment, &self.shape.topic)?;
                seat.member.synced(synced.error_code, partitions)?
            }
            Awaits::Heartbeat => {
                let beaten: HeartbeatResponse = decode(frame, HEARTBEAT)?;
                seat.member.beaten(beaten.error_code)?
            }
            Awaits::Leave => {
                let left: LeaveGroupResponse<'_> = decode(frame, LEAVE)?;
                let of_member = left.members.first().map_or(0, |member| member.error_code);
                seat.member.left(if left.error_code == 0 { of_member } else { left.error_code })?;
                seat.is_gone = true;
                None
            }
        };
        self.note(place, held, answer.at)?;
        ask.map_or(Ok(()), |ask| self.ask(place, ask))
    }

    /// Notes what a member got or gave up.
    fn note(&mut self, place: usize, held: bool, at: u64) -> Result<()> {
        let Self { seats, groups, paused, beats, shape, .. } = self;
        let Some(seat) = seats.get_mut(place) else { return Ok(()) };
        let Some(group) = groups.get_mut(seat.group) else { return Ok(()) };
        let is_current = seat.member.generation == group.generation;
        match (held, seat.member.partitions()) {
            (false, Some(partitions)) => {
                if is_current {
                    group.held += 1;
                    group.settled_at = at;
                }
                if let Some(paused) = paused {
                    paused.assigned(at, place, seat.member.generation, partitions)?;
                }
                let next = at.saturating_add(shape.heartbeat_ns);
                seat.next_beat = Some(next);
                beats.push(Reverse((next, place)));
            }
            (true, None) => {
                if is_current {
                    group.held = group.held.saturating_sub(1);
                }
                if let Some(paused) = paused {
                    paused.released(at, place);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends what a member asks.
    fn ask(&mut self, place: usize, ask: Ask) -> Result<()> {
        let Self { seats, groups, shape, lines, clock, subscription, .. } = self;
        let seat = seats.get(place).context("a request of nobody")?;
        let (group, name) =
            groups.get_mut(seat.group).zip(shape.groups.get(seat.group)).context("no group")?;
        let Member { member_id, generation, instance_id, .. } = &seat.member;
        let (group_id, member_id) = (name.as_str().into(), member_id.as_str().into());
        let group_instance_id = instance_id.as_deref().map(Into::into);
        match ask {
            Ask::Join => {
                group.joined_at = clock.now();
                let metadata = subscription.as_slice().into();
                let request = JoinGroupRequest {
                    group_id,
                    session_timeout_ms: shape.session_timeout_ms,
                    rebalance_timeout_ms: shape.rebalance_timeout_ms,
                    member_id,
                    group_instance_id,
                    protocol_type: PROTOCOL_TYPE.into(),
                    protocols: vec![JoinGroupRequestProtocol { name: PROTOCOL.into(), metadata }],
                    reason: None,
                };
                lines.send(place, JOIN, &request)
            }
            Ask::Sync(assignments) => {
                let assigned = assignments.iter().map(|(member_id, partitions)| SyncGroupRequestAssignment {
                    member_id: member_id.as_str().into(),
                    assignment: assignment::encode(&shape.topic, partitions).into(),
                });
                let request = SyncGroupRequest {
                    group_id,
                    generation_id: *generation,
                    member_id,
                    group_instance_id,
                    protocol_type: Some(PROTOCOL_TYPE.into()),
                    protocol_name: Some(PROTOCOL.into()),
                    assignments: assigned.collect(),
                };
                lines.send(place, SYNC, &request)
            }
            Ask::Heartbeat => {
                let request =
                    HeartbeatRequest { group_id, generation_id: *generation, member_id, group_instance_id };
                lines.send(place, HEARTBEAT, &request)
            }
            Ask::Leave => {
                let members = vec![MemberIdentity { member_id, group_instance_id, reason: None }];
                lines.send(place, LEAVE, &LeaveGroupRequest { group_id, members, ..Default::default() })
            }
        }
    }
}

/// An answer to JoinGroup.
fn joined(frame: &[u8]) -> Result<Joined> {
    let answer: JoinGroupResponse<'_> = decode(frame, JOIN)?;
    let candidate = |member: &protocol::messages::JoinGroupResponseMember<'_>| Candidate {
        member_id: member.member_id.to_string(),
        instance_id: member.group_instance_id.as_deref().map(str::to_owned),
    };
    Ok(Joined {
        error: answer.error_code,
        generation: answer.generation_id,
        leader: answer.leader.to_string(),
        skip_assignment: answer.skip_assignment,
        member_id: answer.member_id.to_string(),
        members: answer.members.iter().map(candidate).collect(),
    })
}
