//! What the coordinators of a shard tell of themselves: how many groups and offsets there are, what has happened to them,
//! how long loads took. Knows no leadership. `service` notes the loads; the scrape of metrics calls the rest.

use std::time::Duration;

use protocol::types::MonoTime;

use super::group::Gauges;
use super::service::GroupService;
use crate::metrics::names::Family;
use crate::metrics::snapshot::{ShardSnapshot, Value};
use crate::shard::ShardRuntime;
use crate::shard::pace::Pace;

/// How long loads took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loads {
    count: u32,
    sum_ms: f64,
    max_ms: f64,
    round: Option<Round>,
}

/// Loads that the log does not tell of yet, of partitions that held anything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) began: MonoTime,
    pub(super) ended: MonoTime,
    pub(super) partitions: usize,
    pub(super) records: u64,
}

impl Loads {
    /// Notes a load. Whether it is the first one of a round, whose end somebody has to tell.
    pub(super) fn note(&mut self, (began, ended): (MonoTime, MonoTime), records: u64) -> bool {
        let ms = Duration::from_nanos(ended.nanos_since(began)).as_secs_f64() * 1000.0;
        self.count = self.count.saturating_add(1);
        self.sum_ms += ms;
        self.max_ms = self.max_ms.max(ms);
        // There are fifty partitions, and most hold nothing.
        if records == 0 {
            return false;
        }
        let is_first = self.round.is_none();
        let round = self.round.get_or_insert(Round { began, ended, partitions: 0, records: 0 });
        round.ended = ended;
        round.partitions = round.partitions.saturating_add(1);
        round.records = round.records.saturating_add(records);
        is_first
    }

    /// What is to be told.
    pub(super) fn take_round(&mut self) -> Option<Round> {
        self.round.take()
    }

    fn average_ms(&self) -> f64 {
        self.sum_ms / f64::from(self.count.max(1))
    }
}

impl<R: ShardRuntime> GroupService<R> {
    /// Tells how many groups and offsets there are, and how long loads took.
    pub async fn tell(&self, out: &mut ShardSnapshot) {
        let mut all = Gauges::default();
        let mut pace = Pace::new(&self.0.runtime);
        let mut counts = self.0.counts.get();
        for active in self.all_active() {
            counts = counts.and(active.machine.borrow().counts());
            let more = active.machine.borrow().gauges();
            for (sum, more) in [
                (&mut all.groups, more.groups),
                (&mut all.offsets, more.offsets),
                (&mut all.preparing_rebalance, more.preparing_rebalance),
                (&mut all.completing_rebalance, more.completing_rebalance),
                (&mut all.stable, more.stable),
                (&mut all.dead, more.dead),
                (&mut all.empty, more.empty),
                (&mut all.bytes, more.bytes),
            ] {
                *sum = sum.saturating_add(more);
            }
            pace.look().await;
        }
        for (family, count) in [
            (Family::Groups, all.groups),
            (Family::GroupOffsets, all.offsets),
            (Family::GroupsPreparing, all.preparing_rebalance),
            (Family::GroupsCompleting, all.completing_rebalance),
            (Family::GroupsStable, all.stable),
            (Family::GroupsDead, all.dead),
            (Family::GroupsEmpty, all.empty),
            (Family::GroupMemory, all.bytes),
            (Family::GroupRequests, self.waiting()),
        ] {
            out.whole(family, count);
        }
        for (family, count) in [
            (Family::GroupCommits, counts.commits),
            (Family::GroupExpirations, counts.expirations),
            (Family::GroupDeletions, counts.deletions),
            (Family::GroupRebalances, counts.rebalances),
            (Family::GroupRefusals, counts.refusals),
        ] {
            out.count(family, &Vec::new(), count);
        }
        let loads = self.0.loads.get();
        out.push(Family::GroupLoadMax, Vec::new(), Value::Real(loads.max_ms));
        out.push(Family::GroupLoadAverage, Vec::new(), Value::Real(loads.average_ms()));
    }
}
