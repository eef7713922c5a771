//! A fetch on the owner of its partitions (replication.md 12.4): probe all, and then read, wait or report. Knows no
//! session and no other owner; the order and the limits come from the asking shard.

use protocol::types::MonoTime;
use storage::io::Runtime;

use super::ask::{
    ArmedShare, FetchAsk, FetchPart, FetchStep, Fetched, Isolation, PartitionError, PartitionKey, ProbedPart,
    ReadPart, Reader, Wait, bytes_of, calls_for_an_answer, may_exceed, sum,
};
use super::delayed::fetch::Armed;
use super::read::Grant;
use super::service::PartitionService;
use crate::shard::ShardId;

/// After so much work without waiting a fetch lets the shard poll its sockets and timers.
const BUDGET_NANOS: u64 = 100_000;

/// Parts that are passed over cost less than a look at the clock.
const LOOK_EVERY: usize = 64;

impl<R: Runtime> PartitionService<R> {
    /// A fetch of this shard has come to its own partitions: notes that, and what they could give. The fetch itself is to
    /// follow in the same turn.
    pub fn arrive(&self, (isolation, reader): (Isolation, Reader), parts: &[FetchPart]) -> Vec<ProbedPart> {
        self.arrived(reader, parts);
        self.probe_all((isolation, reader), parts)
    }

    /// Serves a fetch of `from`, which may be this shard; then with what was found when it arrived, if it has.
    pub async fn fetch(&self, from: ShardId, ask: FetchAsk, found: Option<Vec<ProbedPart>>) -> Fetched {
        let FetchAsk { isolation, reader, parts, step, disarm } = ask;
        {
            let mut fetches = self.0.hub.fetches.borrow_mut();
            for wait in disarm {
                fetches.disarm((from, wait));
            }
        }
        match step {
            FetchStep::Read { max_bytes, first_batch_whole } => {
                for part in parts.iter().filter(|part| part.discarded > 0) {
                    self.take_back(reader, part.key, part.discarded);
                }
                Fetched::Read(self.read_all((isolation, reader), &parts, max_bytes, first_batch_whole).await)
            }
            FetchStep::Share { max_bytes, wait, again } => {
                let probed = match found {
                    Some(found) => found,
                    None if again => self.probe_all((isolation, reader), &parts),
                    None => self.arrive((isolation, reader), &parts),
                };
                match wait {
                    Some(wait) if !calls_for_an_answer(&probed, wait.min_bytes) => Fetched::Armed(
                        self.arm_share((from, wait), (isolation, reader), parts, &probed).await,
                    ),
                    _ if sum(&probed) > u64::from(max_bytes) => Fetched::TooMuch,
                    _ => Fetched::Read(self.read_all((isolation, reader), &parts, max_bytes, false).await),
                }
            }
            FetchStep::Probe { wait } => {
                let probed = self.probe_all((isolation, reader), &parts);
                if let Some(wait) = wait
                    && !probed.iter().any(|part| part.immediate)
                {
                    self.arm(from, wait, armed(wait, (isolation, reader), parts, &probed, true));
                }
                Fetched::Probed(probed)
            }
            FetchStep::Whole { max_bytes, wait } => {
                let probed = self.arrive((isolation, reader), &parts);
                match wait {
                    Some(wait) if !calls_for_an_answer(&probed, wait.min_bytes) => {
                        self.wait((from, wait), (isolation, reader), parts, &probed, max_bytes).await
                    }
                    _ => Fetched::Read(self.read_all((isolation, reader), &parts, max_bytes, true).await),
                }
            }
        }
    }

    /// Waits, unless the first batch exceeds its part's limit and is enough alone: it counts whole, as in Kafka, which
    /// counts what it has read. The wait is armed before, so that nothing is missed while the batch is read.
    async fn wait(
        &self,
        (from, wait): (ShardId, Wait),
        (isolation, reader): (Isolation, Reader),
        parts: Vec<FetchPart>,
        probed: &[ProbedPart],
        max_bytes: u32,
    ) -> Fetched {
        let large = may_exceed(parts.iter(), probed).then(|| parts.clone());
        self.arm(from, wait, armed(wait, (isolation, reader), parts, probed, false));
        if let Some(parts) = large {
            let read = self.read_all((isolation, reader), &parts, max_bytes, true).await;
            if bytes_of(&read) >= wait.min_bytes {
                self.0.hub.fetches.borrow_mut().disarm((from, wait.id));
                return Fetched::Read(read);
            }
            for (place, outcome) in read {
                if let (Some(part), Ok(data)) = (parts.get(place), outcome) {
                    self.take_back(reader, part.key, data.bytes);
                }
            }
        }
        Fetched::Waiting
    }

    /// Arms a wait for this owner's share of a fetch, and tells of the parts that have no data.
    async fn arm_share(
        &self,
        (from, wait): (ShardId, Wait),
        (isolation, reader): (Isolation, Reader),
        parts: Vec<FetchPart>,
        probed: &[ProbedPart],
    ) -> ArmedShare {
        let may_exceed = may_exceed(parts.iter(), probed);
        let (places, without): (Vec<usize>, Vec<FetchPart>) = (0..)
            .zip(parts.iter().zip(probed))
            .filter(|(_, (_, probed))| !probed.has_data && !probed.quiet)
            .map(|(place, (part, _))| (place, *part))
            .unzip();
        let armed = armed(wait, (isolation, reader), parts, probed, true);
        let bytes = armed.sum;
        self.arm(from, wait, armed);
        let mut empty = self.read_all((isolation, reader), &without, 0, false).await;
        for (place, _) in &mut empty {
            *place = places.get(*place).copied().unwrap_or(*place);
        }
        ArmedShare { bytes, may_exceed, empty }
    }

    /// Notes that a fetch was made, and where a follower is: once for each fetch.
    fn arrived(&self, reader: Reader, parts: &[FetchPart]) {
        for part in parts {
            let Ok(partition) = self.partition(part.key) else { continue };
            partition.count_fetch();
            if let Reader::Replica { .. } = reader {
                partition.follower_fetched(reader, part);
            }
        }
    }

    /// Bytes were read that are not handed out.
    fn take_back(&self, reader: Reader, key: PartitionKey, bytes: u32) {
        if let Ok(partition) = self.partition(key) {
            partition.take_back(reader, bytes);
        }
    }

    /// Counts what each part could give.
    fn probe_all(&self, (isolation, reader): (Isolation, Reader), parts: &[FetchPart]) -> Vec<ProbedPart> {
        let probe = |part: &FetchPart| match self.partition(part.key) {
            Ok(partition) => partition.probe(isolation, reader, part),
            // The reader may wait for it: it would only ask again.
            Err(PartitionError::Loading) => ProbedPart::NOTHING,
            Err(_) => ProbedPart::AT_ONCE,
        };
        parts.iter().map(probe).collect()
    }

    fn arm(&self, from: ShardId, wait: Wait, armed: Armed) {
        let mut fetches = self.0.hub.fetches.borrow_mut();
        fetches.expire(self.runtime().now());
        fetches.arm((from, wait.id), armed);
    }

    /// Reads parts in order until the limit: the first that has data may exceed it by one batch (KIP-74).
    async fn read_all(
        &self,
        (isolation, reader): (Isolation, Reader),
        parts: &[FetchPart],
        max_bytes: u32,
        first_batch_whole: bool,
    ) -> Vec<ReadPart> {
        let mut left = max_bytes;
        let mut first_batch_whole = first_batch_whole;
        let mut began = self.runtime().now();
        let mut outcomes = Vec::new();
        for (place, part) in parts.iter().enumerate() {
            let grant = Grant { max_bytes: part.max_bytes.min(left), first_batch_whole };
            let outcome = match self.partition(part.key) {
                Ok(partition) if partition.is_quiet(part) => {
                    if place.is_multiple_of(LOOK_EVERY) {
                        began = self.let_others(began).await;
                    }
                    continue;
                }
                Ok(partition) => {
                    let outcome = partition.read(isolation, reader, part, grant).await;
                    partition.count_read(reader, &outcome);
                    outcome
                }
                Err(error) => Err(error),
            };
            if let Ok(data) = &outcome
                && data.bytes > 0
            {
                left = left.saturating_sub(data.bytes);
                first_batch_whole = false;
            }
            outcomes.push((place, outcome));
            began = self.let_others(began).await;
        }
        outcomes
    }

    /// Lets the shard have its turn when a slice that began then is over; when the present slice began.
    async fn let_others(&self, began: MonoTime) -> MonoTime {
        if self.runtime().now().nanos_since(began) <= BUDGET_NANOS {
            return began;
        }
        self.runtime().turn().await;
        self.runtime().now()
    }
}

fn armed(
    wait: Wait,
    (isolation, reader): (Isolation, Reader),
    parts: Vec<FetchPart>,
    probed: &[ProbedPart],
    is_shared: bool,
) -> Armed {
    let Wait { min_bytes, until, .. } = wait;
    let bytes: Vec<_> = probed.iter().map(|part| part.bytes).collect();
    let sum = bytes.iter().sum();
    Armed { isolation, reader, parts, bytes, sum, min_bytes, is_shared, until }
}
