//! Whether a connection goes on to another shard: the one that owns what it asks for, so that its requests take no way
//! between shards. Decided once, by its first requests for records or to coordinators. Knows no body: the handler
//! says where a request is at home. Used by `connection`; `listener` carries it out.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;

use bytes::BytesMut;
use protocol::api::ApiKey;

use super::admission::{AddressToken, Admission};
use crate::shard::ShardId;
use crate::shard::memory::Charge;

/// A client that writes goes where its first so many requests are at home, if that is one shard: who writes to all
/// partitions stays. A member of a group likewise: where it has one connection for all, its first fetch comes before so many
/// heartbeats and commits. A client that reads names all that it wants at once.
const ALIKE_MIN: u8 = 4;

/// Requests that are looked at before a connection stays for good.
const LOOKS_MAX: u8 = 16;

/// Bytes that have arrived and are not handled go along; with more than this the connection does not go.
pub(super) const UNREAD_BYTES_MAX: usize = 256 << 10;

/// A connection on its way to another shard.
pub(super) struct Moving {
    pub(super) to: ShardId,
    pub(super) socket: OwnedFd,
    pub(super) unread: Unread,
}

/// What has arrived of a connection that moves, from the start of a frame on.
pub(crate) struct Unread {
    pub(super) bytes: BytesMut,
    /// On the shard that has read it, until the other one charges it.
    pub(super) charge: Charge,
}

/// The way to the other shards.
pub(super) trait Ways {
    /// Whether a shard has room for one more connection of this one.
    fn has_room(&self, to: ShardId) -> bool;
    /// Sends a connection on.
    fn send(
        &self,
        moving: Moving,
        listener: &str,
        admission: (Admission, Option<AddressToken>),
    ) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// What the requests of one connection have said so far.
pub(super) struct Looks {
    left: u8,
    /// Where the requests were at home, and how many.
    home: Option<(ShardId, u8)>,
}

impl Looks {
    /// None yet; who has moved, or has nowhere to go, stays.
    pub(super) fn new(stays: bool) -> Self {
        Self { left: if stays { 0 } else { LOOKS_MAX }, home: None }
    }

    /// Whether requests are still to be looked at.
    pub(super) fn are_open(&self) -> bool {
        self.left > 0
    }

    /// Whether this one is.
    pub(super) fn wants(&self, key: ApiKey) -> bool {
        self.are_open()
            && matches!(key, ApiKey::Produce | ApiKey::Fetch | ApiKey::Heartbeat | ApiKey::OffsetCommit)
    }

    /// Notes where a request is at home; where the connection should be now.
    pub(super) fn note(&mut self, here: ShardId, key: ApiKey, home: Option<ShardId>) -> Option<ShardId> {
        self.left = self.left.saturating_sub(1);
        let home = home?;
        let count = match self.home {
            None => 1,
            Some((before, count)) if before == home => count.saturating_add(1),
            Some(_) => return self.stay(),
        };
        if home == here {
            return self.stay();
        }
        self.home = Some((home, count));
        (key == ApiKey::Fetch || count >= ALIKE_MIN).then_some(home)
    }

    fn stay(&mut self) -> Option<ShardId> {
        self.left = 0;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ShardId = ShardId::new(0);
    const THERE: ShardId = ShardId::new(1);

    fn noted(homes: &[(ApiKey, Option<ShardId>)]) -> Vec<Option<ShardId>> {
        let mut looks = Looks::new(false);
        homes
            .iter()
            .map(|(key, home)| if looks.wants(*key) { looks.note(HERE, *key, *home) } else { None })
            .collect()
    }

    #[test]
    fn who_reads_goes_at_once_and_who_writes_when_four_requests_are_at_home_there() {
        assert_eq!(
            noted(&[(ApiKey::Metadata, Some(THERE)), (ApiKey::Fetch, Some(THERE))]),
            [None, Some(THERE)]
        );
        let there = (ApiKey::Produce, Some(THERE));
        assert_eq!(noted(&[there; 4]), [None, None, None, Some(THERE)]);
        assert_eq!(noted(&[there, (ApiKey::Produce, None), there, there, there]).pop(), Some(Some(THERE)));
    }

    #[test]
    fn a_member_of_a_group_goes_to_its_coordinator_unless_it_joins_only() {
        let (beat, commit) = ((ApiKey::Heartbeat, Some(THERE)), (ApiKey::OffsetCommit, Some(THERE)));
        assert_eq!(noted(&[beat, commit, beat, commit]), [None, None, None, Some(THERE)]);
        assert!(noted(&[(ApiKey::JoinGroup, Some(THERE)); 20]).iter().all(Option::is_none));
    }

    #[test]
    fn who_is_at_home_here_or_at_several_shards_stays() {
        let there = (ApiKey::Produce, Some(THERE));
        for other in [HERE, ShardId::new(2)] {
            let other = (ApiKey::Produce, Some(other));
            assert!(
                noted(&[there, there, there, other, there, there, there, there]).iter().all(Option::is_none)
            );
        }
        assert!(noted(&[(ApiKey::Produce, None); 20]).iter().all(Option::is_none));
        let commit = (ApiKey::OffsetCommit, Some(THERE));
        let fetch = (ApiKey::Fetch, Some(HERE));
        assert!(noted(&[commit, commit, commit, fetch, commit, commit]).iter().all(Option::is_none));
        assert!(!Looks::new(true).wants(ApiKey::Fetch));
    }
}
