//! What one shard tells when it is scraped: the cells, and what there is at the moment in each of its parts. One task per
//! shard; it waits for a scrape, and between two slices for the shard's next turn.

use std::rc::Weak;
use std::sync::Arc;

use futures_util::StreamExt;

use super::shard::Services;
use crate::metrics::names::Family;
use crate::metrics::registry::TOPICS_MAX;
use crate::metrics::scrape::{ScrapeAsk, ScrapeSeat};
use crate::metrics::snapshot::{Labels, ShardSnapshot, Value, whole};
use crate::shard::glommio::GlommioShard;
use crate::shard::pace::Pace;
use crate::shard::start::cpu_of_thread;
use crate::shard::{ShardId, ShardRuntime};

/// Topics that are told between two looks at the clock: some 30 µs.
const TOPICS_STEP: usize = 16;

/// Answers scrapes until nobody can ask any more, or the task is dropped.
pub async fn answer(runtime: GlommioShard, services: Weak<Services>, mut asked: ScrapeSeat) {
    while let Some(ScrapeAsk { reply }) = asked.next().await {
        let Some(services) = services.upgrade() else { return };
        let snapshot = snapshot(&runtime, &services).await;
        // Whoever asked may have given up; there is room for the answer of every shard.
        let _ = reply.try_send((runtime.shard().get(), snapshot));
    }
}

async fn snapshot(runtime: &GlommioShard, services: &Services) -> ShardSnapshot {
    let mut out = ShardSnapshot::default();
    let shard = runtime.shard().get();
    let labels: Labels = vec![("shard", Arc::from(shard.to_string()))];
    out.push(Family::ShardCpu, labels.clone(), Value::Real(cpu_of_thread().as_secs_f64()));
    out.count(Family::ShardTasks, &labels, runtime.tasks());
    out.count(Family::ShardLateWakes, &labels, runtime.late_wakes());
    out.count(Family::ShardColdPieces, &labels, runtime.cold_pieces());
    out.count(Family::ShardSlowSends, &labels, runtime.slow_sends());
    let (metrics, mut left) = (&services.wiring.metrics, TOPICS_MAX);
    let mut pace = Pace::new(runtime);
    let mut last = metrics.tell_topics(None, TOPICS_STEP, &mut left, &mut out);
    while let Some(behind) = last {
        pace.look().await;
        last = metrics.tell_topics(Some(&behind), TOPICS_STEP, &mut left, &mut out);
    }
    metrics.tell(shard, &mut out);
    services.connections.tell(&mut out);
    let sessions = services.wiring.fetch.sessions();
    out.whole(Family::FetchSessions, sessions.sessions);
    out.whole(Family::FetchSessionPartitions, sessions.partitions);
    out.count(Family::FetchSessionEvictions, &Labels::new(), sessions.evictions);
    for (mailbox, depth) in [
        ("partitions", services.partitions.queued()),
        ("fetches", services.wiring.fetch.queued()),
        ("admin", services.wiring.admin.queued()),
        ("groups", services.wiring.groups.queued()),
        ("connections", services.arrivals.queued()),
    ] {
        let labels = vec![("shard", Arc::from(shard.to_string())), ("mailbox", Arc::from(mailbox))];
        out.push(Family::ShardMailbox, labels, whole(depth));
    }
    if runtime.shard() == ShardId::CONTROL {
        out.whole(Family::ConnectionsLimit, services.connections_max);
    }
    if let Some(controller) = services.controller.get() {
        controller.tell(&mut out);
    }
    services.wiring.groups.local().tell(&mut out).await;
    services.partitions.local().tell(&mut out).await;
    out
}
