//! The members of one group: who they are, what they can do, who leads, who waits for what. Keeps the counts by which a
//! join among a thousand members costs no walk over them. Knows no state and no timer's end: `join`, `rebalance`, `sync`
//! and `sessions` call it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use protocol::types::MonoTime;

use super::bytes::{MEMBER_BYTES, PENDING_BYTES, PROTOCOL_BYTES};
use super::machine::Waiter;
use super::timers::TimerKey;
use crate::coordinator::ask::{InstanceId, JoinedMember, MemberId};

/// What a member can do, the best first: names, each once, with opaque metadata.
#[derive(Clone, Debug, Default)]
pub(super) struct Protocols {
    all: Box<[(Arc<str>, Bytes)]>,
    /// Bytes of everything that was offered: what is passed over may be in one piece of memory with what is kept.
    bytes: usize,
}

impl PartialEq for Protocols {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}

impl Eq for Protocols {}

impl Protocols {
    /// Of a request: each name once.
    pub(super) fn new(offered: &[(Arc<str>, Bytes)]) -> Self {
        let mut seen = BTreeSet::new();
        let bytes = offered.iter().map(|(name, metadata)| PROTOCOL_BYTES + name.len() + metadata.len()).sum();
        let unique = offered.iter().filter(|(name, _)| seen.insert(Arc::clone(name)));
        let all = unique.map(|(name, metadata)| (Arc::clone(name), metadata.clone())).collect();
        Self { all, bytes }
    }

    /// Bytes that they take.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The names, the best first.
    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.all.iter().map(|(name, _)| name)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The metadata of a protocol.
    pub(super) fn metadata(&self, name: &str) -> Option<&Bytes> {
        self.all.iter().find(|(offered, _)| &**offered == name).map(|(_, metadata)| metadata)
    }
}

/// One member.
#[derive(Debug)]
pub(super) struct Member {
    /// Its own name, if it is static.
    pub(super) instance: Option<InstanceId>,
    /// Name that the client gave itself.
    pub(super) client_id: Arc<str>,
    /// Address of the client.
    pub(super) client_host: Arc<str>,
    /// Milliseconds without a heartbeat after which it is gone.
    pub(super) session_timeout_ms: i32,
    /// Milliseconds that a rebalance waits for it.
    pub(super) rebalance_timeout_ms: i32,
    protocols: Protocols,
    /// What the leader gave it.
    pub(super) assignment: Bytes,
    join: Option<Waiter>,
    /// The SyncGroup that waits.
    pub(super) sync: Option<Waiter>,
    /// Its first join is not answered yet.
    pub(super) is_new: bool,
    /// It was a member when this generation began and has not synced.
    pub(super) owes_sync: bool,
    /// When it is gone unless heard of.
    pub(super) deadline: MonoTime,
    /// The timer that looks after it, not later than `deadline`.
    pub(super) timer: Option<TimerKey>,
}

/// What a join tells of its member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) client_id: Arc<str>,
    pub(super) client_host: Arc<str>,
    pub(super) session_timeout_ms: i32,
    pub(super) rebalance_timeout_ms: i32,
    pub(super) protocols: Protocols,
}

impl Profile {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.client_id.len() + self.client_host.len() + self.protocols.bytes()
    }
}

impl Member {
    /// A member that is not heard of yet.
    pub(super) fn new(profile: Profile, instance: Option<InstanceId>) -> Self {
        Self {
            instance,
            client_id: profile.client_id,
            client_host: profile.client_host,
            session_timeout_ms: profile.session_timeout_ms,
            rebalance_timeout_ms: profile.rebalance_timeout_ms,
            protocols: profile.protocols,
            assignment: Bytes::new(),
            join: None,
            sync: None,
            is_new: false,
            owes_sync: false,
            deadline: MonoTime::new(0),
            timer: None,
        }
    }

    /// What it can do.
    pub(super) const fn protocols(&self) -> &Protocols {
        &self.protocols
    }

    /// Bytes that it takes under an id, without what the leader gave it.
    fn bytes(&self, id: &str) -> usize {
        let instance = self.instance.as_ref().map_or(0, |instance| instance.len());
        MEMBER_BYTES + id.len() + instance + self.profile_bytes()
    }

    /// What its profile takes of them.
    pub(super) fn profile_bytes(&self) -> usize {
        self.client_id.len() + self.client_host.len() + self.protocols.bytes()
    }

    /// Whether a JoinGroup waits.
    pub(super) const fn is_joining(&self) -> bool {
        self.join.is_some()
    }

    /// The JoinGroup that waits.
    #[cfg(test)]
    pub(super) const fn joining(&self) -> Option<Waiter> {
        self.join
    }

    /// What its join told.
    pub(super) fn profile(&self) -> Profile {
        Profile {
            client_id: Arc::clone(&self.client_id),
            client_host: Arc::clone(&self.client_host),
            session_timeout_ms: self.session_timeout_ms,
            rebalance_timeout_ms: self.rebalance_timeout_ms,
            protocols: self.protocols.clone(),
        }
    }
}

/// The members.
#[derive(Debug, Default)]
pub(super) struct Members {
    all: BTreeMap<MemberId, Member>,
    by_instance: BTreeMap<InstanceId, MemberId>,
    /// Ids handed out and not joined with, with their timers. Never static.
    pending: BTreeMap<MemberId, TimerKey>,
    /// How many members offer a protocol.
    offered: BTreeMap<Arc<str>, usize>,
    /// Who leads; a member while there is any.
    pub(super) leader: Option<MemberId>,
    joins: usize,
    /// Bytes of members and of ids handed out.
    bytes: usize,
    /// Bytes that the leader brought when it assigned last: they may be one piece of memory, which lasts while anybody has
    /// a part of it.
    assigned: usize,
}

impl Members {
    /// How many.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many wait for the end of the join phase.
    pub(super) const fn joins(&self) -> usize {
        self.joins
    }

    /// Whether everybody waits for it who may come.
    pub(super) fn have_all_joined(&self) -> bool {
        self.joins == self.all.len() && self.pending.is_empty()
    }

    /// Bytes that all of it takes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes + self.assigned
    }

    /// Bytes that the leader brought when it assigned last.
    pub(super) const fn assigned(&self) -> usize {
        self.assigned
    }

    /// The leader has assigned anew.
    pub(super) const fn set_assigned(&mut self, bytes: usize) {
        self.assigned = bytes;
    }

    /// Hands an id out.
    pub(super) fn add_pending(&mut self, id: MemberId, timer: TimerKey) {
        self.bytes += PENDING_BYTES + id.len();
        self.pending.insert(id, timer);
    }

    /// Takes an id back that was handed out, and its timer.
    pub(super) fn remove_pending(&mut self, id: &str) -> Option<TimerKey> {
        let timer = self.pending.remove(id)?;
        self.bytes -= PENDING_BYTES + id.len();
        Some(timer)
    }

    /// Whether ids are handed out.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ids that are handed out.
    pub(super) fn pending(&self) -> impl Iterator<Item = (&MemberId, &TimerKey)> {
        self.pending.iter()
    }

    /// A member.
    pub(super) fn get(&self, id: &str) -> Option<&Member> {
        self.all.get(id)
    }

    /// A member, to change what is not counted.
    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Member> {
        self.all.get_mut(id)
    }

    /// All, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&MemberId, &Member)> {
        self.all.iter()
    }

    /// A member, with the id as it is kept.
    pub(super) fn get_key_value(&self, id: &str) -> Option<(&MemberId, &Member)> {
        self.all.get_key_value(id)
    }

    /// All ids.
    pub(super) fn ids(&self) -> Vec<MemberId> {
        self.all.keys().cloned().collect()
    }

    /// Whether an id is taken.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.all.contains_key(id) || self.pending.contains_key(id)
    }

    /// Whether the member leads.
    pub(super) fn is_leader(&self, id: &str) -> bool {
        self.leader.as_deref() == Some(id)
    }

    /// The member that is static by this name.
    pub(super) fn of_instance(&self, instance: &str) -> Option<&MemberId> {
        self.by_instance.get(instance)
    }

    /// Adds a member; the first one leads. An id or a name that is there already is replaced: only a log says it twice.
    pub(super) fn add(&mut self, id: MemberId, member: Member) {
        self.remove(&id);
        if let Some(instance) = &member.instance
            && let Some(other) = self.by_instance.get(instance).cloned()
        {
            self.remove(&other);
        }
        if let Some(instance) = &member.instance {
            self.by_instance.insert(Arc::clone(instance), Arc::clone(&id));
        }
        count(&mut self.offered, &member.protocols);
        self.joins += usize::from(member.is_joining());
        self.leader.get_or_insert_with(|| Arc::clone(&id));
        self.bytes += member.bytes(&id);
        self.all.insert(id, member);
    }

    /// Removes a member. Whoever leads from then on is another one.
    pub(super) fn remove(&mut self, id: &str) -> Option<Member> {
        let member = self.all.remove(id)?;
        self.bytes -= member.bytes(id);
        if self.all.is_empty() {
            self.assigned = 0;
        }
        uncount(&mut self.offered, &member.protocols);
        self.joins -= usize::from(member.is_joining());
        if let Some(instance) = &member.instance {
            self.by_instance.remove(instance);
        }
        if self.is_leader(id) {
            self.leader = self.all.keys().next().cloned();
        }
        Some(member)
    }

    /// Gives a static member another id, and the leadership with it. What waits for it waits on.
    pub(super) fn rename(&mut self, from: &str, to: &MemberId) {
        let Some(member) = self.all.remove(from) else { return };
        if let Some(instance) = &member.instance {
            self.by_instance.insert(Arc::clone(instance), Arc::clone(to));
        }
        if self.is_leader(from) {
            self.leader = Some(Arc::clone(to));
        }
        self.bytes = self.bytes - from.len() + to.len();
        self.all.insert(Arc::clone(to), member);
    }

    /// Takes what a join tells of a member.
    pub(super) fn update(&mut self, id: &str, profile: Profile) {
        let Some(member) = self.all.get_mut(id) else { return };
        uncount(&mut self.offered, &member.protocols);
        count(&mut self.offered, &profile.protocols);
        self.bytes = self.bytes - member.profile_bytes() + profile.bytes();
        member.client_id = profile.client_id;
        member.client_host = profile.client_host;
        member.session_timeout_ms = profile.session_timeout_ms;
        member.rebalance_timeout_ms = profile.rebalance_timeout_ms;
        member.protocols = profile.protocols;
    }

    /// A JoinGroup waits. Gives the one that it replaces.
    pub(super) fn park_join(&mut self, id: &str, waiter: Waiter) -> Option<Waiter> {
        let replaced = self.all.get_mut(id)?.join.replace(waiter);
        self.joins += usize::from(replaced.is_none());
        replaced
    }

    /// It waits no longer.
    pub(super) fn take_join(&mut self, id: &str) -> Option<Waiter> {
        let waiter = self.all.get_mut(id)?.join.take();
        self.joins -= usize::from(waiter.is_some());
        waiter
    }

    /// Whether this JoinGroup of the member waits.
    pub(super) fn is_parked(&self, id: &str, waiter: Waiter) -> bool {
        self.all.get(id).is_some_and(|member| member.join == Some(waiter))
    }

    /// Whether all members offer a protocol.
    fn is_offered_by_all(&self, name: &str) -> bool {
        self.offered.get(name).copied().unwrap_or(0) == self.all.len()
    }

    /// Whether one of these is a protocol of all members.
    pub(super) fn agree_on_one_of(&self, protocols: &Protocols) -> bool {
        protocols.names().any(|name| self.is_offered_by_all(name))
    }

    /// The protocol that wins now: everybody votes for the first of its own that all offer. Kafka leaves open what
    /// becomes of equal votes; here the leader's order decides.
    pub(super) fn elect_protocol(&self) -> Option<Arc<str>> {
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.all.values() {
            if let Some(name) = member.protocols.names().find(|name| self.is_offered_by_all(name)) {
                *votes.entry(name).or_default() += 1;
            }
        }
        let of_leader = &self.all.get(self.leader.as_ref()?)?.protocols;
        let most = votes.values().copied().max()?;
        of_leader.names().find(|name| votes.get(&***name) == Some(&most)).cloned()
    }

    /// The longest time that a rebalance waits for a member.
    pub(super) fn rebalance_timeout_ms(&self) -> i32 {
        self.all.values().map(|member| member.rebalance_timeout_ms).max().unwrap_or(0)
    }

    /// Makes somebody lead who has joined. Whether there is one.
    pub(super) fn elect_joined_leader(&mut self) -> bool {
        let leads = |id: &MemberId| self.all.get(id).is_some_and(Member::is_joining);
        if self.leader.as_ref().is_some_and(leads) {
            return true;
        }
        let joined = self.all.iter().find(|(_, member)| member.is_joining()).map(|(id, _)| Arc::clone(id));
        let found = joined.is_some();
        self.leader = joined.or_else(|| self.leader.take());
        found
    }

    /// The members as the leader sees them.
    pub(super) fn for_leader(&self, protocol: &str) -> Vec<JoinedMember> {
        let joined = |(id, member): (&MemberId, &Member)| JoinedMember {
            member: Arc::clone(id),
            instance: member.instance.clone(),
            metadata: member.protocols.metadata(protocol).cloned().unwrap_or_default(),
        };
        self.all.iter().map(joined).collect()
    }

    /// Compares what is counted with what is there.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.joins, self.all.values().filter(|member| member.is_joining()).count());
        let of_pending = self.pending.keys().map(|id| PENDING_BYTES + id.len());
        let of_members = self.all.iter().map(|(id, member)| member.bytes(id));
        assert_eq!(self.bytes, of_members.chain(of_pending).sum::<usize>());
        let given = self.all.values().map(|member| member.assignment.len()).sum::<usize>();
        assert!(given <= self.assigned && (self.assigned == 0 || !self.all.is_empty()));
        let mut offered = BTreeMap::new();
        for member in self.all.values() {
            count(&mut offered, &member.protocols);
        }
        assert_eq!(self.offered, offered);
        let names = self.all.iter().filter_map(|(id, m)| Some((m.instance.clone()?, id.clone())));
        assert_eq!(self.by_instance, names.collect());
        assert_eq!(self.leader.is_some(), !self.all.is_empty());
        assert!(self.leader.as_ref().is_none_or(|leader| self.all.contains_key(leader)));
    }
}

fn count(offered: &mut BTreeMap<Arc<str>, usize>, protocols: &Protocols) {
    for name in protocols.names() {
        *offered.entry(Arc::clone(name)).or_default() += 1;
    }
}

fn uncount(offered: &mut BTreeMap<Arc<str>, usize>, protocols: &Protocols) {
    for name in protocols.names() {
        if let Some(members) = offered.get_mut(name) {
            *members -= 1;
            if *members == 0 {
                offered.remove(name);
            }
        }
    }
}
