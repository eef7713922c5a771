//! News that a service has for other shards, now and then: each of them keeps one ask outstanding on which its news goes
//! so that what waits for minutes holds no place in any queue. Knows not what the news is; used by the services of
//! partitions (fetches that can go on) and of coordinators (replies that come later than their requests).

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::{Reply, ShardId};

/// The lines to all shards.
pub struct Lines<N, A> {
    lines: RefCell<BTreeMap<ShardId, Line<N, A>>>,
    /// Makes an answer of news.
    tell: fn(Vec<N>) -> A,
}

/// What goes to one shard, and the ask that is outstanding for it.
struct Line<N, A> {
    /// What could not be sent yet; bounded by what the other shard waits for.
    news: Vec<N>,
    reply: Option<Reply<A>>,
}

impl<N, A> Default for Line<N, A> {
    fn default() -> Self {
        Self { news: Vec::new(), reply: None }
    }
}

impl<N, A> Lines<N, A> {
    /// Lines on which nobody listens yet.
    pub fn new(tell: fn(Vec<N>) -> A) -> Self {
        Self { lines: RefCell::default(), tell }
    }

    /// A shard asks for news: it is answered now or as soon as there is some. A second ask replaces the first.
    pub fn listen(&self, from: ShardId, reply: Reply<A>) {
        let mut lines = self.lines.borrow_mut();
        let line = lines.entry(from).or_default();
        if line.news.is_empty() {
            // Who is told that the first has ended, by its drop, is this shard at most: its future wakes later.
            line.reply = Some(reply);
            return;
        }
        let news = std::mem::take(&mut line.news);
        drop(lines);
        reply.send((self.tell)(news));
    }

    /// Adds news; it leaves with [`Self::flush`].
    pub fn push(&self, to: ShardId, news: N) {
        self.lines.borrow_mut().entry(to).or_default().news.push(news);
    }

    /// Sends what shards wait for; the rest goes out with their next asks.
    pub fn flush(&self) {
        let mut ready = Vec::new();
        for line in self.lines.borrow_mut().values_mut().filter(|line| !line.news.is_empty()) {
            if let Some(reply) = line.reply.take() {
                ready.push((reply, std::mem::take(&mut line.news)));
            }
        }
        for (reply, news) in ready {
            reply.send((self.tell)(news));
        }
    }

    /// How much is not sent yet.
    pub fn waiting(&self) -> usize {
        self.lines.borrow().values().map(|line| line.news.len()).sum()
    }

    /// Nobody is told anything any more: whoever listens learns that.
    pub fn close(&self) {
        let lines = self.lines.take();
        drop(lines);
    }
}
