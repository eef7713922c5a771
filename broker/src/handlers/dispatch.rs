//! Which handler serves which api key: adding an API is one line. Also what every handler shares: the wiring, decoding a
//! body, encoding an answer. `net` calls it; it decides nothing.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use protocol::api::{ApiKey, response_header};
use protocol::codec::{Cursor, Segment, Writer};
use protocol::error::DecodeError;
use protocol::messages::Message;
use protocol::types::MonoTime;
use smallvec::SmallVec;
use storage::io::Span;

use super::fetch::FetchState;
use super::init_producer_id::ProducerIds;
use super::{Answer, Outcome, Request, RequestHandler, Response};
use super::{
    alter_log_dirs, api_versions, configs, delete_records, fetch, find_coordinator, group_admin,
    group_offsets, groups, home, init_producer_id, log_dirs, metadata, offset_delete, offsets, produce,
    producers, topics,
};
use crate::admin::service::AdminService;
use crate::config::broker::BrokerConfig;
use crate::coordinator::client::GroupClient;
use crate::metadata::cell::ImageCell;
use crate::metrics::ShardMetrics;
use crate::partition::log_dirs::table::LogDirTable;
use crate::partition::service::PartitionService;
use crate::shard::{ShardId, ShardRuntime, Shards};

/// What handlers need of the broker's configuration.
#[derive(Clone, Debug)]
pub struct HandlerSettings {
    /// `fetch.max.bytes`: bytes of a fetch answer at most.
    pub fetch_bytes_max: u32,
    /// The log dirs, absolute, as DescribeLogDirs tells them.
    pub log_dirs: LogDirTable,
}

/// What the handlers of one shard work with.
pub struct Wiring<R: ShardRuntime> {
    /// Clock, tasks, files.
    pub runtime: R,
    /// The newest metadata.
    pub image: ImageCell,
    /// The partitions, by owner.
    pub partitions: Shards<R, PartitionService<R>>,
    /// Wishes to change the cluster; done on shard 0.
    pub admin: Shards<R, AdminService>,
    /// Producer ids of this shard.
    pub producer_ids: ProducerIds,
    /// The coordinators of groups.
    pub groups: GroupClient<R>,
    /// The configuration of this broker.
    pub config: Rc<BrokerConfig>,
    /// Settings.
    pub settings: HandlerSettings,
    /// Sessions and waits of this shard's fetches.
    pub fetch: FetchState<R>,
    /// The cells of this shard.
    pub metrics: Rc<ShardMetrics>,
}

/// The handlers of one shard.
pub struct Handlers<R: ShardRuntime>(Rc<Wiring<R>>);

impl<R: ShardRuntime> Clone for Handlers<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The answer of an accepted Produce.
pub type Accepted = Pin<Box<dyn Future<Output = Answer>>>;

impl<R: ShardRuntime> Handlers<R> {
    /// Handlers over a wiring.
    pub fn new(wiring: Rc<Wiring<R>>) -> Self {
        Self(wiring)
    }
}

impl<R: ShardRuntime> RequestHandler for Handlers<R> {
    type Accepted = Accepted;

    async fn handle(&self, request: Request) -> Outcome<Accepted> {
        let wiring = &self.0;
        let answer = match ApiKey::new(request.api_key) {
            Some(ApiKey::Produce) => return produce::handle(wiring, request).await,
            Some(ApiKey::Fetch) => fetch::handle(wiring, request).await,
            Some(ApiKey::ListOffsets) => offsets::list_offsets(wiring, request).await,
            Some(ApiKey::OffsetForLeaderEpoch) => offsets::offset_for_leader_epoch(wiring, request).await,
            Some(ApiKey::DeleteRecords) => delete_records::handle(wiring, request).await,
            Some(ApiKey::AlterReplicaLogDirs) => alter_log_dirs::handle(wiring, request).await,
            Some(ApiKey::DescribeLogDirs) => log_dirs::handle(wiring, request).await,
            Some(ApiKey::DescribeProducers) => producers::handle(wiring, request).await,
            Some(ApiKey::ApiVersions) => api_versions::handle(&request),
            Some(ApiKey::Metadata) => metadata::handle(wiring, &request).await,
            Some(ApiKey::DescribeCluster) => metadata::describe_cluster(wiring, &request),
            Some(ApiKey::FindCoordinator) => find_coordinator::handle(wiring, &request).await,
            Some(ApiKey::JoinGroup) => groups::join(wiring, request).await,
            Some(ApiKey::SyncGroup) => groups::sync(wiring, request).await,
            Some(ApiKey::Heartbeat) => groups::heartbeat(wiring, request).await,
            Some(ApiKey::LeaveGroup) => groups::leave(wiring, request).await,
            Some(ApiKey::OffsetCommit) => group_offsets::commit(wiring, request).await,
            Some(ApiKey::OffsetFetch) => group_offsets::fetch(wiring, request).await,
            Some(ApiKey::OffsetDelete) => offset_delete::delete(wiring, request).await,
            Some(ApiKey::DescribeGroups) => group_admin::describe(wiring, request).await,
            Some(ApiKey::ListGroups) => group_admin::list(wiring, request).await,
            Some(ApiKey::DeleteGroups) => group_admin::delete(wiring, request).await,
            Some(ApiKey::InitProducerId) => init_producer_id::handle(wiring, &request).await,
            Some(ApiKey::CreateTopics) => topics::create_topics(wiring, &request).await,
            Some(ApiKey::DeleteTopics) => topics::delete_topics(wiring, &request).await,
            Some(ApiKey::CreatePartitions) => topics::create_partitions(wiring, &request).await,
            Some(ApiKey::DescribeConfigs) => {
                configs::describe_configs(&wiring.runtime, &wiring.image, &wiring.config, request).await
            }
            Some(ApiKey::AlterConfigs) => {
                configs::alter_configs(&wiring.runtime, &wiring.image, &wiring.admin, request).await
            }
            Some(ApiKey::IncrementalAlterConfigs) => {
                configs::incremental_alter_configs(&wiring.runtime, &wiring.image, &wiring.admin, request)
                    .await
            }
            _ => Answer::Close("api key is not served"),
        };
        Outcome::Done(answer)
    }

    fn home(&self, api_key: i16, api_version: i16, body: &[u8]) -> Option<ShardId> {
        home::of(&self.0, ApiKey::new(api_key)?, api_version, body)
    }
}

/// How long an ask of another shard waits that carries no timeout of the client's, in milliseconds: as long as Kafka's
/// own clients do.
pub const ASK_MS_MAX: i32 = 30_000;

/// Memory that a decoded request may take beside its frame: some hundred thousand partitions or names. A frame of a
/// hundred megabytes can name many millions, and hold the shard and its memory with them (A-5, P-5); no cluster has them.
const DECODED_BYTES_MAX: usize = 16 << 20;

/// A shard that has ended closes its connections; this one is about to.
pub const STOPPING: Answer = Answer::Close("broker is stopping");

/// A body that cannot be decoded: the connection is to be closed without an answer (protocol.md C7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl From<Malformed> for Answer {
    fn from(_: Malformed) -> Self {
        Self::Close("malformed request")
    }
}

/// Decodes the body of a request.
///
/// # Errors
/// The body is malformed.
pub fn decode<'a, M: Message<'a>>(request: &'a Request) -> Result<M, Malformed> {
    decode_taken(request, &request.body)
}

/// The same for a body that was taken out of its request.
///
/// # Errors
/// The body is malformed.
pub fn decode_taken<'a, M: Message<'a>>(request: &Request, body: &'a [u8]) -> Result<M, Malformed> {
    decode_bounded(body, request.api_version).map_err(|error| {
        closing(request, "a request cannot be decoded", &error);
        Malformed
    })
}

/// Tells the operator that a connection is closed for this request.
fn closing(request: &Request, what: &'static str, error: &dyn fmt::Display) {
    let Request { api_key, api_version, received, ref client_id, ref connection, .. } = *request;
    let api = ApiKey::new(api_key).map_or("unknown", ApiKey::name);
    connection.tell_closing(received, client_id, what, &format_args!("{api} version {api_version}: {error}"));
}

/// The same for a body alone, of a request that another shard has decoded before.
///
/// # Errors
/// The body is malformed.
pub fn decode_body<'a, M: Message<'a>>(body: &'a [u8], version: i16) -> Result<M, Malformed> {
    decode_bounded(body, version).map_err(|error| {
        tracing::debug!(%error, key = M::KEY.name(), version, "request cannot be decoded");
        Malformed
    })
}

fn decode_bounded<'a, M: Message<'a>>(body: &'a [u8], version: i16) -> Result<M, DecodeError> {
    M::decode(&mut Cursor::bounded(body, DECODED_BYTES_MAX), version)
}

/// No frame can hold the answer.
const TOO_LARGE: &str = "answer above 2 GiB";

/// Room for an answer of a few partitions without growing.
const ANSWER_BYTES: usize = 256;

/// Encodes an answer that holds all its bytes.
pub fn reply<'a, M: Message<'a>>(request: &Request, message: &M) -> Answer {
    let answer = reply_around((request.api_version, request.correlation_id), message, []);
    if let Answer::Close(TOO_LARGE) = answer {
        closing(request, TOO_LARGE, &"it asks for more than a frame can hold");
    }
    if let Answer::Reply(_) = answer {
        count_errors(&request.connection.account.metrics, message, request.api_version);
    }
    answer
}

/// Counts the error codes that an answer carries.
pub fn count_errors<'a, M: Message<'a>>(metrics: &ShardMetrics, message: &M, version: i16) {
    message.each_error_code(version, |code, times| metrics.error(M::KEY, code, times));
}

/// Encodes an answer around record bytes that stay where they are: `records` are the held bytes, in order (C9).
pub fn reply_around<'a, M: Message<'a>>(
    (version, correlation_id): (i16, i32),
    message: &M,
    records: impl IntoIterator<Item = Span>,
) -> Answer {
    let mut writer = Writer::with_capacity(ANSWER_BYTES);
    response_header(M::KEY, version, correlation_id, &mut writer);
    message.encode(&mut writer, version);
    if let Some(what) = writer.misfit() {
        return misfit(M::KEY, version, what);
    }
    if i32::try_from(writer.len()).is_err() {
        return Answer::Close(TOO_LARGE);
    }
    let mut records = records.into_iter();
    let mut spans = SmallVec::new();
    for segment in writer.into_segments().segments {
        match segment {
            Segment::Bytes(bytes) => spans.push(Span::Memory(bytes)),
            Segment::Foreign(bytes) => {
                let mut left = bytes;
                while left > 0 {
                    let Some(span) = records.next() else { break };
                    assert!(span.len() <= left, "record bytes agree with their announced length");
                    left -= span.len();
                    spans.push(span);
                }
                assert_eq!(left, 0, "record bytes agree with their announced length");
            }
        }
    }
    Answer::Reply(Response { spans })
}

/// An answer that its version cannot carry is a bug of ours: no answer is better than one that says something else.
fn misfit(key: ApiKey, version: i16, what: &'static str) -> Answer {
    tracing::error!(key = key.name(), version, what, "an answer does not fit its version, connection closed");
    Answer::Close("answer does not fit its version")
}

/// The deadline that a client's timeout gives.
pub fn deadline<R: ShardRuntime>(runtime: &R, timeout_ms: i32) -> MonoTime {
    runtime.now().plus_ms(i64::from(timeout_ms))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use bytes::BytesMut;
    use protocol::messages::configs::{DescribeConfigsResponse, DescribeConfigsResult};

    use super::*;
    use crate::handlers::patience::Patience;
    use crate::handlers::{Account, ConnectionContext};
    use crate::shard::memory::Charge;

    /// A value longer than a string can hold would reach the client cut, and be believed.
    #[test]
    fn an_answer_that_its_version_cannot_carry_closes_the_connection() {
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 5000));
        let request = Request {
            api_key: ApiKey::DescribeConfigs.get(),
            api_version: 4,
            correlation_id: 1,
            client_id: "c".into(),
            body: BytesMut::new(),
            charge: Charge::none(),
            memory: 0,
            received: MonoTime::new(0),
            connection: Rc::new(ConnectionContext {
                listener: "PLAINTEXT".into(),
                peer,
                id: 1,
                account: Account::default(),
                patience: Patience::default(),
            }),
        };
        let answer = |bytes: usize| {
            let result = DescribeConfigsResult {
                resource_name: "v".repeat(bytes).into(),
                ..DescribeConfigsResult::default()
            };
            DescribeConfigsResponse { throttle_time_ms: 0, results: vec![result] }
        };
        assert!(matches!(reply(&request, &answer(32_767)), Answer::Reply(_)));
        assert!(matches!(reply(&request, &answer(32_768)), Answer::Close(_)));
        assert!(matches!(reply_around((4, 1), &answer(32_768), []), Answer::Close(_)));
    }
}
