//! Waits for what a wish has brought about: until the image of every shard shows it, the deadline is there, or the client
//! waits no longer. One wait for all topics of a wish, which looks at each once: a request may name a hundred thousand.
//! Decides nothing; used by `topics`.

use std::pin::pin;

use futures_util::future::{Either, select};
use protocol::types::{BrokerId, MonoTime, TopicId, TopicName};

use super::ask::Client;
use super::service::Admin;
use crate::metadata::image::Image;
use crate::shard::ShardRuntime;
use crate::shard::pace::Pace;
use crate::store::MetadataStore;

/// A topic that was created or has grown.
pub(super) struct Led {
    /// Its place in the answer.
    pub(super) place: usize,
    pub(super) name: TopicName,
    pub(super) id: TopicId,
    /// How many of its partitions are to have leaders.
    pub(super) partitions: usize,
}

impl Led {
    pub(super) fn is_shown(&self, image: &Image) -> bool {
        let topic = image.topic(self.name.get()).filter(|topic| topic.id == self.id);
        topic.is_some_and(|topic| {
            let led = topic.partitions.iter().filter(|partition| partition.leader != BrokerId::NONE).count();
            led >= self.partitions
        })
    }
}

impl<R: ShardRuntime, S: MetadataStore> Admin<R, S> {
    /// Waits until all that was done is shown; whether each is. Without a deadline nothing is waited for, and nothing is
    /// taken to be shown.
    pub(super) async fn until_shown<T>(
        &self,
        done: &[T],
        (deadline, client): (Option<MonoTime>, Client),
        is_shown: impl Fn(&T, &Image) -> bool,
    ) -> Vec<bool> {
        let Some(deadline) = deadline else { return vec![false; done.len()] };
        let mut pace = Pace::new(&self.runtime);
        let late = pin!(self.runtime.sleep_until(deadline));
        let mut over = select(late, client);
        let mut shown = 0_usize;
        loop {
            // Registered before the look, so that no publication falls in between.
            let published = self.publisher.published();
            let image = self.publisher.everywhere();
            while let Some(next) = done.get(shown)
                && is_shown(next, &image)
            {
                shown = shown.saturating_add(1);
                pace.step().await;
            }
            if shown == done.len() || matches!(select(published, &mut over).await, Either::Right(_)) {
                break;
            }
        }
        let image = self.publisher.everywhere();
        let each = done.iter().enumerate().map(|(place, one)| place < shown || is_shown(one, &image));
        pace.collect(each).await
    }
}
