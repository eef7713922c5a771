//! What Kafka keeps in the tree: paths and payloads, to the letter of zookeeper.md 2 to 4, so that another broker of the
//! cluster can be Kafka's own. Readers ignore unknown keys and tolerate the older versions that the sheet names. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::types::{BrokerId, ControllerEpoch, LeaderEpoch, TopicId};
use serde::{Deserialize, Serialize};

/// The active controller's ephemeral node.
pub const CONTROLLER: &str = "/controller";
/// Generation of the controller, as text; its data version fences every controller write.
pub const CONTROLLER_EPOCH: &str = "/controller_epoch";
/// Registered brokers.
pub const BROKER_IDS: &str = "/brokers/ids";
/// Topics.
pub const TOPICS: &str = "/brokers/topics";
/// Marks of topics to be deleted.
pub const DELETE_TOPICS: &str = "/admin/delete_topics";
/// Hints of leaders that wrote an ISR themselves.
pub const ISR_CHANGES: &str = "/isr_change_notification";
/// Hints of brokers that lost a log directory.
pub const LOG_DIR_EVENTS: &str = "/log_dir_event_notification";
/// One of them; the store appends a number.
pub const LOG_DIR_EVENT: &str = "/log_dir_event_notification/log_dir_event_";
/// Finalized features.
pub const FEATURE: &str = "/feature";
/// Id of the cluster.
pub const CLUSTER_ID: &str = "/cluster/id";
/// The last block of producer ids that was handed out.
pub const PRODUCER_ID_BLOCK: &str = "/latest_producer_id_block";
/// Notifications of changed configs.
pub const CONFIG_CHANGES: &str = "/config/changes";

/// What the oldest consumers keep: members, owners, offsets.
pub const CONSUMERS: &str = "/consumers";

/// Made by every broker at its start: persistent, with null data.
pub const SKELETON: [&str; 14] = [
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    "/brokers/seqid",
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    "/config/topics",
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
];

/// Path of a broker's registration.
pub fn broker(id: BrokerId) -> String {
    format!("{BROKER_IDS}/{id}")
}

/// Path of a topic.
pub fn topic(name: &str) -> String {
    format!("{TOPICS}/{name}")
}

/// Path of the folder of a topic's partitions.
pub fn partitions(topic: &str) -> String {
    format!("{TOPICS}/{topic}/partitions")
}

/// Path of the folder of a partition.
pub fn partition(topic: &str, partition: i32) -> String {
    format!("{TOPICS}/{topic}/partitions/{partition}")
}

/// Path of a partition's leader and ISR.
pub fn partition_state(topic: &str, partition: i32) -> String {
    format!("{TOPICS}/{topic}/partitions/{partition}/state")
}

/// Path of a topic's overrides.
pub fn topic_config(topic: &str) -> String {
    format!("/config/topics/{topic}")
}

/// Path of the mark of a topic to be deleted.
pub fn delete_topic(topic: &str) -> String {
    format!("{DELETE_TOPICS}/{topic}")
}

/// Path of an offset that a group's client of the oldest kind has committed; its data is the number as text. `None` for
/// an id that cannot stand in a path: what ZooKeeper's clients refuse. A slash in it only makes the path longer.
pub fn consumer_offset(group: &str, topic: &str, partition: i32) -> Option<String> {
    let is_name = |name: &str| !matches!(name, "" | "." | "..");
    let is_legal = group.split('/').all(is_name) && group.chars().all(is_of_path);
    is_legal.then(|| format!("{CONSUMERS}/{group}/offsets/{topic}/{partition}"))
}

/// Whether ZooKeeper's clients take a character in a path: neither control characters nor what UTF-16 writes as surrogates.
fn is_of_path(character: char) -> bool {
    !matches!(u32::from(character), 0..=0x1e | 0x80..=0x9e | 0xd801..=0xf8fe | 0xfff1..=0xfffe | 0x1_0000..)
}

/// A payload that does not say what its path promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Not the JSON object, or the number, that belongs there.
    #[error("malformed payload")]
    Malformed,
    /// A version that no reader of this payload may accept.
    #[error("payload version {0} is not supported")]
    Version(i32),
}

fn print<T: Serialize>(payload: &T) -> Bytes {
    // Strings, integers and maps with string keys have a JSON form, so this cannot fail; an empty node is refused by readers.
    serde_json::to_vec(payload).unwrap_or_default().into()
}

fn parse<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Result<T, PayloadError> {
    serde_json::from_slice(data).map_err(|_| PayloadError::Malformed)
}

/// Range of versions of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureRange {
    /// Lowest version.
    pub min_version: i16,
    /// Highest version.
    pub max_version: i16,
}

/// `/brokers/ids/<id>`, version 5. Its czxid is the broker epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerNode {
    version: i32,
    /// Host of the first endpoint whose protocol is PLAINTEXT.
    pub host: Option<String>,
    /// Its port; -1 if there is none.
    pub port: i32,
    /// Port of JMX, which we have not: -1. Java readers insist on the key.
    pub jmx_port: i32,
    /// When it registered, as text.
    pub timestamp: Option<String>,
    /// `NAME://host:port`, in the order of the configuration.
    #[serde(default)]
    pub endpoints: Vec<String>,
    /// Listener to security protocol.
    #[serde(default)]
    pub listener_security_protocol_map: BTreeMap<String, String>,
    /// Rack; the key is absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// Supported features: none in ZooKeeper mode.
    #[serde(default)]
    pub features: BTreeMap<String, FeatureRange>,
}

/// One advertised listener of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerEndpoint {
    /// Listener name.
    pub listener: String,
    /// Host as clients are told.
    pub host: String,
    /// Port as clients are told.
    pub port: u16,
    /// PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
    pub security_protocol: String,
}

impl BrokerNode {
    /// The registration of a broker.
    pub fn new(endpoints: &[BrokerEndpoint], rack: Option<&str>, now_ms: i64) -> Self {
        let plain = endpoints.iter().find(|endpoint| endpoint.security_protocol == "PLAINTEXT");
        let bracketed = |host: &str| if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Self {
            version: 5,
            host: plain.map(|endpoint| endpoint.host.clone()),
            port: plain.map_or(-1, |endpoint| i32::from(endpoint.port)),
            jmx_port: -1,
            timestamp: Some(now_ms.to_string()),
            endpoints: endpoints
                .iter()
                .map(|endpoint| {
                    format!("{}://{}:{}", endpoint.listener, bracketed(&endpoint.host), endpoint.port)
                })
                .collect(),
            listener_security_protocol_map: endpoints
                .iter()
                .map(|endpoint| (endpoint.listener.clone(), endpoint.security_protocol.clone()))
                .collect(),
            rack: rack.map(str::to_owned),
            features: BTreeMap::new(),
        }
    }

    /// Prints it.
    pub fn print(&self) -> Bytes {
        print(self)
    }

    /// Reads it.
    ///
    /// # Errors
    /// `Malformed`; `Version` below 1.
    pub fn parse(data: &[u8]) -> Result<Self, PayloadError> {
        let node: Self = parse(data)?;
        if node.version < 1 { Err(PayloadError::Version(node.version)) } else { Ok(node) }
    }

    /// Its advertised listeners; version 1 knows host and port only.
    ///
    /// # Errors
    /// `Malformed` endpoints.
    pub fn endpoints(&self) -> Result<Vec<BrokerEndpoint>, PayloadError> {
        if self.version < 2 || self.endpoints.is_empty() {
            let port = u16::try_from(self.port).map_err(|_| PayloadError::Malformed)?;
            let host = self.host.clone().ok_or(PayloadError::Malformed)?;
            let plaintext = "PLAINTEXT".to_owned();
            return Ok(vec![BrokerEndpoint {
                listener: plaintext.clone(),
                host,
                port,
                security_protocol: plaintext,
            }]);
        }
        self.endpoints.iter().map(|text| self.endpoint(text).ok_or(PayloadError::Malformed)).collect()
    }

    fn endpoint(&self, text: &str) -> Option<BrokerEndpoint> {
        let (listener, address) = text.split_once("://")?;
        let (host, port) = address.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let protocol = self.listener_security_protocol_map.get(listener).map_or(listener, String::as_str);
        Some(BrokerEndpoint {
            listener: listener.to_owned(),
            host: host.to_owned(),
            port: port.parse().ok()?,
            security_protocol: protocol.to_owned(),
        })
    }
}

/// `/brokers/topics/<t>`, version 3.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicNode {
    #[serde(default = "topic_version")]
    version: i32,
    /// 22 characters; absent in nodes older than Kafka 2.8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    topic_id: Option<String>,
    /// Partition to replicas, preferred leader first. During a reassignment target replicas come first.
    partitions: BTreeMap<i32, Vec<i32>>,
    /// Replicas that a reassignment adds; only partitions with some.
    #[serde(default)]
    adding_replicas: BTreeMap<i32, Vec<i32>>,
    /// Replicas that a reassignment removes; only partitions with some.
    #[serde(default)]
    removing_replicas: BTreeMap<i32, Vec<i32>>,
}

fn topic_version() -> i32 {
    3
}

/// Replicas of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// All replicas, preferred leader first.
    pub replicas: Vec<BrokerId>,
    /// Those that a reassignment adds.
    pub adding: Vec<BrokerId>,
    /// Those that a reassignment removes.
    pub removing: Vec<BrokerId>,
}

impl Assignment {
    /// Replicas that are not being reassigned.
    pub fn of(replicas: Vec<BrokerId>) -> Self {
        Self { replicas, adding: Vec::new(), removing: Vec::new() }
    }

    /// Whether a reassignment is under way.
    pub fn is_reassigning(&self) -> bool {
        !self.adding.is_empty() || !self.removing.is_empty()
    }
}

impl TopicNode {
    /// A topic of these partitions.
    pub fn new(id: Option<TopicId>, partitions: &BTreeMap<i32, Assignment>) -> Self {
        let part = |pick: fn(&Assignment) -> &Vec<BrokerId>, keep_empty: bool| {
            partitions
                .iter()
                .map(|(index, assignment)| {
                    (*index, pick(assignment).iter().map(|id| id.get()).collect::<Vec<_>>())
                })
                .filter(|(_, ids)| keep_empty || !ids.is_empty())
                .collect()
        };
        Self {
            version: 3,
            topic_id: id.map(|id| id.to_string()),
            partitions: part(|assignment| &assignment.replicas, true),
            adding_replicas: part(|assignment| &assignment.adding, false),
            removing_replicas: part(|assignment| &assignment.removing, false),
        }
    }

    /// Prints it.
    pub fn print(&self) -> Bytes {
        print(self)
    }

    /// Reads it; versions are not told apart, as in Kafka.
    ///
    /// # Errors
    /// `Malformed`, also for null or empty data.
    pub fn parse(data: &[u8]) -> Result<Self, PayloadError> {
        let node: Self = parse(data)?;
        match &node.topic_id {
            Some(id) if TopicId::parse(id).is_none() => Err(PayloadError::Malformed),
            _ => Ok(node),
        }
    }

    /// The topic's id, if it has one.
    pub fn id(&self) -> Option<TopicId> {
        self.topic_id.as_deref().and_then(TopicId::parse)
    }

    /// Its partitions.
    pub fn assignments(&self) -> BTreeMap<i32, Assignment> {
        let ids = |raw: Option<&Vec<i32>>| -> Vec<BrokerId> {
            raw.into_iter().flatten().map(|id| BrokerId::new(*id)).collect()
        };
        self.partitions
            .iter()
            .map(|(index, replicas)| {
                let adding = ids(self.adding_replicas.get(index));
                let removing = ids(self.removing_replicas.get(index));
                (*index, Assignment { replicas: ids(Some(replicas)), adding, removing })
            })
            .collect()
    }
}

/// `…/partitions/<p>/state`, version 1. Its data version is the partition epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateNode {
    version: i32,
    leader: i32,
    leader_epoch: i32,
    controller_epoch: i32,
    isr: Vec<i32>,
    /// 1 while recovering from an unclean election; recovered is expressed by absence.
    #[serde(default, skip_serializing_if = "is_recovered")]
    leader_recovery_state: i32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_recovered(state: &i32) -> bool {
    *state == 0
}

/// What the state node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// The leader, or `BrokerId::NONE`.
    pub leader: BrokerId,
    /// Generation of the leadership.
    pub leader_epoch: LeaderEpoch,
    /// The controller that decided.
    pub controller_epoch: ControllerEpoch,
    /// In-sync replicas, in order.
    pub isr: Vec<BrokerId>,
    /// Whether the leader was elected uncleanly and has not changed the ISR since.
    pub recovering: bool,
}

impl PartitionState {
    /// Prints it.
    pub fn print(&self) -> Bytes {
        print(&StateNode {
            version: 1,
            leader: self.leader.get(),
            leader_epoch: self.leader_epoch.get(),
            controller_epoch: self.controller_epoch.get(),
            isr: self.isr.iter().map(|id| id.get()).collect(),
            leader_recovery_state: i32::from(self.recovering),
        })
    }

    /// Reads it.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn parse(data: &[u8]) -> Result<Self, PayloadError> {
        let node: StateNode = parse(data)?;
        Ok(Self {
            leader: BrokerId::new(node.leader),
            leader_epoch: LeaderEpoch::new(node.leader_epoch),
            controller_epoch: ControllerEpoch::new(node.controller_epoch),
            isr: node.isr.into_iter().map(BrokerId::new).collect(),
            recovering: node.leader_recovery_state != 0,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct ControllerNode {
    version: i32,
    brokerid: i32,
    timestamp: String,
    #[serde(rename = "kraftControllerEpoch", default = "no_epoch")]
    kraft_controller_epoch: i32,
}

fn no_epoch() -> i32 {
    -1
}

/// Prints `/controller`, version 2.
pub fn print_controller(id: BrokerId, now_ms: i64) -> Bytes {
    let timestamp = now_ms.to_string();
    print(&ControllerNode { version: 2, brokerid: id.get(), timestamp, kraft_controller_epoch: -1 })
}

/// The id in `/controller`.
///
/// # Errors
/// `Malformed`.
pub fn parse_controller(data: &[u8]) -> Result<BrokerId, PayloadError> {
    #[derive(Deserialize)]
    struct Id {
        brokerid: i32,
    }
    parse::<Id>(data).map(|node| BrokerId::new(node.brokerid))
}

/// Prints `/controller_epoch`.
pub fn print_controller_epoch(epoch: ControllerEpoch) -> Bytes {
    epoch.to_string().into()
}

/// Reads `/controller_epoch`.
///
/// # Errors
/// `Malformed`.
pub fn parse_controller_epoch(data: &[u8]) -> Result<ControllerEpoch, PayloadError> {
    let text = std::str::from_utf8(data).map_err(|_| PayloadError::Malformed)?;
    text.trim().parse().map(ControllerEpoch::new).map_err(|_| PayloadError::Malformed)
}

#[derive(Serialize, Deserialize)]
struct ClusterNode {
    version: String,
    id: String,
}

/// Prints `/cluster/id`.
pub fn print_cluster_id(id: &str) -> Bytes {
    print(&ClusterNode { version: "1".to_owned(), id: id.to_owned() })
}

/// Reads `/cluster/id`.
///
/// # Errors
/// `Malformed`.
pub fn parse_cluster_id(data: &[u8]) -> Result<String, PayloadError> {
    parse::<ClusterNode>(data).map(|node| node.id)
}

#[derive(Serialize, Deserialize)]
struct ConfigNode {
    version: i32,
    config: BTreeMap<String, String>,
}

/// Prints `/config/<type>/<entity>`.
pub fn print_config(config: &BTreeMap<String, String>) -> Bytes {
    print(&ConfigNode { version: 1, config: config.clone() })
}

/// Reads `/config/<type>/<entity>`; null and empty mean no overrides.
///
/// # Errors
/// `Malformed`, `Version` other than 1.
pub fn parse_config(data: Option<&[u8]>) -> Result<BTreeMap<String, String>, PayloadError> {
    match data.unwrap_or_default() {
        [] => Ok(BTreeMap::new()),
        data => match parse::<ConfigNode>(data)? {
            ConfigNode { version: 1, config } => Ok(config),
            ConfigNode { version, .. } => Err(PayloadError::Version(version)),
        },
    }
}

#[derive(Serialize, Deserialize)]
struct ConfigChangeNode {
    version: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entity_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entity_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entity_name: Option<String>,
}

/// Prints `/config/changes/config_change_<seq>`, version 2; the path is such as `topics/t`.
pub fn print_config_change(entity_path: &str) -> Bytes {
    let entity_path = Some(entity_path.to_owned());
    print(&ConfigChangeNode { version: 2, entity_path, entity_type: None, entity_name: None })
}

/// The path of the entity that a config change names.
///
/// # Errors
/// `Malformed`, `Version` other than 1 and 2.
pub fn parse_config_change(data: &[u8]) -> Result<String, PayloadError> {
    match parse::<ConfigChangeNode>(data)? {
        ConfigChangeNode { version: 2, entity_path: Some(path), .. } => Ok(path),
        ConfigChangeNode { version: 1, entity_type: Some(kind), entity_name: Some(name), .. } => {
            Ok(format!("{kind}/{name}"))
        }
        ConfigChangeNode { version: 1 | 2, .. } => Err(PayloadError::Malformed),
        ConfigChangeNode { version, .. } => Err(PayloadError::Version(version)),
    }
}

#[derive(Serialize, Deserialize)]
struct LogDirEventNode {
    version: i32,
    broker: i32,
    event: i32,
}

/// Prints `/log_dir_event_notification/log_dir_event_<seq>`: a log dir of this broker has failed.
pub fn print_log_dir_event(broker: BrokerId) -> Bytes {
    print(&LogDirEventNode { version: 1, broker: broker.get(), event: 1 })
}

/// The broker that has lost a log dir.
///
/// # Errors
/// `Malformed`, `Version` other than 1.
pub fn parse_log_dir_event(data: &[u8]) -> Result<BrokerId, PayloadError> {
    match parse::<LogDirEventNode>(data)? {
        LogDirEventNode { version: 1, broker, .. } => Ok(BrokerId::new(broker)),
        LogDirEventNode { version, .. } => Err(PayloadError::Version(version)),
    }
}

/// A block of producer ids, both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerIdBlock {
    /// The broker that holds it.
    pub broker: BrokerId,
    /// First id.
    pub start: i64,
    /// Last id.
    pub end: i64,
}

#[derive(Serialize, Deserialize)]
struct BlockNode {
    version: i32,
    broker: i32,
    block_start: String,
    block_end: String,
}

/// How many producer ids a block has.
pub const PRODUCER_ID_BLOCK_SIZE: i64 = 1000;

impl ProducerIdBlock {
    /// The block after this one; `None` when the ids are exhausted.
    pub fn next(last: Option<Self>, broker: BrokerId) -> Option<Self> {
        let start = match last {
            None => 0,
            Some(last) if last.end > i64::MAX - PRODUCER_ID_BLOCK_SIZE => return None,
            Some(last) => last.end + 1,
        };
        Some(Self { broker, start, end: start + (PRODUCER_ID_BLOCK_SIZE - 1) })
    }

    /// Prints `/latest_producer_id_block`.
    pub fn print(&self) -> Bytes {
        let (block_start, block_end) = (self.start.to_string(), self.end.to_string());
        print(&BlockNode { version: 1, broker: self.broker.get(), block_start, block_end })
    }

    /// Reads `/latest_producer_id_block`; null means that no block was handed out yet.
    ///
    /// # Errors
    /// `Malformed`, also for empty data as in Kafka.
    pub fn parse(data: Option<&[u8]>) -> Result<Option<Self>, PayloadError> {
        let Some(data) = data else { return Ok(None) };
        let node: BlockNode = parse(data)?;
        let number = |text: &str| text.parse::<i64>().map_err(|_| PayloadError::Malformed);
        let (start, end) = (number(&node.block_start)?, number(&node.block_end)?);
        if start < 0 || end < start {
            return Err(PayloadError::Malformed);
        }
        Ok(Some(Self { broker: BrokerId::new(node.broker), start, end }))
    }
}

/// `/feature` as this release writes it: enabled, with the features given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureNode {
    version: i32,
    status: i32,
    features: BTreeMap<String, BTreeMap<String, i16>>,
}

impl FeatureNode {
    /// Enabled and without a finalized feature: the controller's default in ZooKeeper mode.
    pub fn enabled() -> Self {
        Self { version: 2, status: 1, features: BTreeMap::new() }
    }

    /// Prints it.
    pub fn print(&self) -> Bytes {
        print(self)
    }

    /// Reads it.
    ///
    /// # Errors
    /// `Malformed`; a version or status that nobody may accept.
    pub fn parse(data: &[u8]) -> Result<Self, PayloadError> {
        let node: Self = parse(data)?;
        match (node.version, node.status) {
            (1 | 2, 0 | 1) => Ok(node),
            (1 | 2, _) => Err(PayloadError::Malformed),
            (version, _) => Err(PayloadError::Version(version)),
        }
    }

    /// What a controller of this release makes of it: enabled stays with its features, disabled becomes enabled.
    #[must_use]
    pub fn reconciled(&self) -> Self {
        if self.status == 0 { Self::enabled() } else { Self { version: 2, ..self.clone() } }
    }
}
