//! Replies that come later than their requests, by the shard that asked: each has one ask outstanding on which they go
//! so that a join that waits for minutes holds no place in any queue. Knows no group; used by `service`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::ask::{GroupAnswer, GroupReply, Ticket};
use crate::shard::{Reply, ShardId};

/// The lines to all shards.
#[derive(Default)]
pub(super) struct Lines(RefCell<BTreeMap<ShardId, Line>>);

/// What goes to one shard, and the ask that is outstanding for it.
#[derive(Default)]
struct Line {
    /// What could not be sent yet; bounded by the requests that wait.
    news: Vec<(Ticket, GroupReply)>,
    reply: Option<Reply<GroupAnswer>>,
}

impl Lines {
    /// A shard asks for replies: it is answered now or as soon as there is one. A second ask replaces the first.
    pub(super) fn listen(&self, from: ShardId, reply: Reply<GroupAnswer>) {
        let mut lines = self.0.borrow_mut();
        let line = lines.entry(from).or_default();
        if line.news.is_empty() {
            // Who is told that the first has ended, by its drop, is this shard at most: its future wakes later.
            line.reply = Some(reply);
            return;
        }
        let news = std::mem::take(&mut line.news);
        drop(lines);
        reply.send(GroupAnswer::Late(news));
    }

    /// Adds a reply; it leaves with [`Self::flush`].
    pub(super) fn push(&self, to: ShardId, ticket: Ticket, reply: GroupReply) {
        self.0.borrow_mut().entry(to).or_default().news.push((ticket, reply));
    }

    /// Sends what shards wait for; the rest goes out with their next ask.
    pub(super) fn flush(&self) {
        let mut ready = Vec::new();
        for line in self.0.borrow_mut().values_mut().filter(|line| !line.news.is_empty()) {
            if let Some(reply) = line.reply.take() {
                ready.push((reply, std::mem::take(&mut line.news)));
            }
        }
        for (reply, news) in ready {
            reply.send(GroupAnswer::Late(news));
        }
    }

    /// Replies that are not sent yet.
    pub(super) fn waiting(&self) -> usize {
        self.0.borrow().values().map(|line| line.news.len()).sum()
    }
}
