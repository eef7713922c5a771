//! Names on disk: segment files, partition directories, the files of a log dir (storage.md 1). Pure text; knows no
//! content. Called by the log's loader, by [`crate::log_dir`] and by whoever creates a file in a partition directory.

use protocol::types::{Offset, TopicName, TopicPartition};

/// `meta.properties`, one per log dir.
pub const META_PROPERTIES: &str = "meta.properties";
/// The file whose lock excludes other brokers from a log dir.
pub const LOCK: &str = ".lock";
/// The file whose presence says that the last stop was clean.
pub const CLEAN_SHUTDOWN: &str = ".kafka_cleanshutdown";
/// The leader epochs of one partition.
pub const LEADER_EPOCH_CHECKPOINT: &str = "leader-epoch-checkpoint";
/// The topic id of one partition.
pub const PARTITION_METADATA: &str = "partition.metadata";
/// Suffix of the half-written side of a replacement.
pub const TMP_SUFFIX: &str = ".tmp";
/// In the directory of a partition that a move has brought into a log dir: of two directories of the partition it is the
/// one that is served. There while the move ends, and where a log was served without one of the log dirs.
pub const MOVE_MARK: &str = "odradek-moved-here";
/// Directories in a log dir that are no partitions of ours and that Kafka's loader skips too.
pub const SKIPPED_DIRS: [&str; 2] = ["remote-log-index-cache", "__cluster_metadata-0"];
/// Longest name that Linux's file systems take, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// What a segment file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentFileKind {
    /// `.log`: record batches back to back.
    Log,
    /// `.index`: offset to position.
    OffsetIndex,
    /// `.timeindex`: timestamp to offset.
    TimeIndex,
    /// `.txnindex`: aborted transactions.
    TxnIndex,
    /// `.snapshot`: producer state at that offset, exclusive.
    Snapshot,
}

impl SegmentFileKind {
    /// Every kind; the first four in the order in which Kafka renames them at the end of a swap (storage.md 7.6).
    pub const ALL: [Self; 5] =
        [Self::Log, Self::OffsetIndex, Self::TimeIndex, Self::TxnIndex, Self::Snapshot];

    /// The suffix with its dot.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Log => ".log",
            Self::OffsetIndex => ".index",
            Self::TimeIndex => ".timeindex",
            Self::TxnIndex => ".txnindex",
            Self::Snapshot => ".snapshot",
        }
    }
}

/// Where a segment file stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentFileState {
    /// In use.
    Plain,
    /// `.deleted`: waits for its removal; removed at start.
    Deleted,
    /// `.cleaned`: output of compaction or of a split, in progress; removed at start.
    Cleaned,
    /// `.swap`: complete output; the swap is finished at start (storage.md 7.6).
    Swap,
}

impl SegmentFileState {
    /// The suffix with its dot, empty for a plain file.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Deleted => ".deleted",
            Self::Cleaned => ".cleaned",
            Self::Swap => ".swap",
        }
    }
}

/// The name of a file that belongs to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentFileName {
    /// Base offset of the segment; for a snapshot the offset that it describes.
    pub base_offset: Offset,
    /// What the file holds.
    pub kind: SegmentFileKind,
    /// Where it stands in its life.
    pub state: SegmentFileState,
}

impl SegmentFileName {
    /// The name of a file in use.
    pub const fn plain(base_offset: Offset, kind: SegmentFileKind) -> Self {
        Self { base_offset, kind, state: SegmentFileState::Plain }
    }

    /// The same file in another state.
    #[must_use]
    pub const fn with_state(self, state: SegmentFileState) -> Self {
        Self { state, ..self }
    }

    /// Reads a name: exactly 20 digits that fit an offset, a kind, a state. `None` for every other name, which the
    /// loader leaves alone.
    pub fn parse(name: &str) -> Option<Self> {
        let (digits, suffix) = name.split_at_checked(20)?;
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let base_offset = Offset::new(digits.parse().ok()?);
        for kind in SegmentFileKind::ALL {
            let Some(rest) = suffix.strip_prefix(kind.suffix()) else { continue };
            let state = match rest {
                "" => SegmentFileState::Plain,
                ".deleted" => SegmentFileState::Deleted,
                ".cleaned" => SegmentFileState::Cleaned,
                ".swap" => SegmentFileState::Swap,
                _ => return None,
            };
            return Some(Self { base_offset, kind, state });
        }
        None
    }
}

impl std::fmt::Display for SegmentFileName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:020}{}{}", self.base_offset.get(), self.kind.suffix(), self.state.suffix())
    }
}

/// Whether a Kafka that starts on a partition directory leaves a file of this name alone (S-11): neither takes it for
/// a segment file, nor deletes it, nor fails on it. Every name that we invent must pass.
pub fn kafka_ignores_file(name: &str) -> bool {
    let numbered = name.split('.').next().is_some_and(|first| first.parse::<i64>().is_ok());
    let claimed = SegmentFileKind::ALL.iter().map(|kind| kind.suffix()).chain([
        SegmentFileState::Deleted.suffix(),
        SegmentFileState::Cleaned.suffix(),
        SegmentFileState::Swap.suffix(),
    ]);
    !numbered && !claimed.into_iter().any(|suffix| name.ends_with(suffix))
}

/// What a partition directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartitionDirKind {
    /// `<topic>-<partition>`: a replica in service.
    Current,
    /// `...-delete`: renamed away, its removal is due.
    Delete,
    /// `...-future`: the target of a move between log dirs.
    Future,
    /// `...-stray`: found at a start although metadata gives it to others; kept, never served.
    Stray,
}

impl PartitionDirKind {
    const SUFFIXED: [Self; 3] = [Self::Delete, Self::Future, Self::Stray];

    /// The suffix with its dash, empty for a replica in service.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Current => "",
            Self::Delete => "-delete",
            Self::Future => "-future",
            Self::Stray => "-stray",
        }
    }
}

/// Why a directory in a log dir is not a partition's. Kafka refuses to start on any such directory (S-1), and so do we.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignDir {
    /// No dash with something on both sides, as in `lost+found`.
    #[error("its name is not of the form topic-partition")]
    NotTopicPartition,
    /// The part before the last dash is no legal topic name.
    #[error("the part of its name before the last dash is not a legal topic name")]
    IllegalTopic,
    /// The part after the last dash is no partition number as brokers write them.
    #[error("the part of its name after the last dash is not a partition number")]
    NotANumber,
    /// It ends in `-delete`, `-future` or `-stray` but is not `topic-partition.unique-suffix`.
    #[error("its name ends in {0} but is not of the form topic-partition.unique{0}")]
    BadSuffixed(&'static str),
}

/// The parsed name of a partition directory. For [`PartitionDirKind::Delete`] and [`PartitionDirKind::Stray`] the
/// topic may have been cut so that the name fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionDirName {
    /// Whose directory it is.
    pub partition: TopicPartition,
    /// What it is for.
    pub kind: PartitionDirKind,
}

impl PartitionDirName {
    /// Reads the name of a directory; the partition is the digits after the last dash, the unique part is not looked
    /// at beyond being there.
    ///
    /// # Errors
    /// What makes the name foreign.
    pub fn parse(name: &str) -> Result<Self, ForeignDir> {
        for kind in PartitionDirKind::SUFFIXED {
            let Some(stem) = name.strip_suffix(kind.suffix()) else { continue };
            let bad = ForeignDir::BadSuffixed(kind.suffix());
            let (front, unique) = stem.rsplit_once('.').ok_or(bad)?;
            if unique.is_empty() || unique.contains(char::is_whitespace) {
                return Err(bad);
            }
            let partition = parse_topic_partition(front)?;
            return Ok(Self { partition, kind });
        }
        Ok(Self { partition: parse_topic_partition(name)?, kind: PartitionDirKind::Current })
    }
}

fn parse_topic_partition(name: &str) -> Result<TopicPartition, ForeignDir> {
    let (topic, digits) = name.rsplit_once('-').ok_or(ForeignDir::NotTopicPartition)?;
    if topic.is_empty() || digits.is_empty() {
        return Err(ForeignDir::NotTopicPartition);
    }
    let partition: i32 = digits.parse().map_err(|_| ForeignDir::NotANumber)?;
    // `a-+1` and `a-01` would be second names of one partition; no broker writes them.
    if partition.to_string() != digits {
        return Err(ForeignDir::NotANumber);
    }
    if !TopicName::is_legal(topic) {
        return Err(ForeignDir::IllegalTopic);
    }
    Ok(TopicPartition::new(TopicName::new(topic), partition))
}

/// The directory of a replica in service.
pub fn partition_dir(partition: &TopicPartition) -> String {
    partition.to_string()
}

/// The name that a directory gets when its removal is due. `random` makes it unique; the topic is cut so that the
/// name fits [`NAME_BYTES_MAX`].
pub fn delete_dir(partition: &TopicPartition, random: u128) -> String {
    capped(partition, random, PartitionDirKind::Delete)
}

/// The name that a directory gets when metadata says that it is not ours; cut like [`delete_dir`].
pub fn stray_dir(partition: &TopicPartition, random: u128) -> String {
    capped(partition, random, PartitionDirKind::Stray)
}

/// The name of the target of a move between log dirs; `None` when it would exceed [`NAME_BYTES_MAX`], since this
/// name, unlike the others, must keep the whole topic.
pub fn future_dir(partition: &TopicPartition, random: u128) -> Option<String> {
    let name = format!("{partition}{}", unique_suffix(random, PartitionDirKind::Future));
    (name.len() <= NAME_BYTES_MAX).then_some(name)
}

fn capped(partition: &TopicPartition, random: u128, kind: PartitionDirKind) -> String {
    let tail = format!("-{}{}", partition.partition, unique_suffix(random, kind));
    let mut room = NAME_BYTES_MAX.saturating_sub(tail.len());
    let topic = partition.topic.get();
    while !topic.is_char_boundary(room.min(topic.len())) {
        room -= 1;
    }
    let (kept, _) = topic.split_at_checked(room).unwrap_or((topic, ""));
    format!("{kept}{tail}")
}

/// `.<32 hex><suffix>`: a random UUID of version 4 without its dashes, as Kafka writes it.
fn unique_suffix(random: u128, kind: PartitionDirKind) -> String {
    let id = uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
    format!(".{}{}", id.simple(), kind.suffix())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tp(topic: &str, partition: i32) -> TopicPartition {
        TopicPartition::new(TopicName::new(topic), partition)
    }

    #[test]
    fn segment_names_are_twenty_digits_and_round_trip() {
        let name = SegmentFileName::plain(Offset::new(42), SegmentFileKind::Log);
        assert_eq!(name.to_string(), "00000000000000000042.log");
        for kind in SegmentFileKind::ALL {
            for state in [
                SegmentFileState::Plain,
                SegmentFileState::Deleted,
                SegmentFileState::Cleaned,
                SegmentFileState::Swap,
            ] {
                let name = SegmentFileName::plain(Offset::new(i64::MAX), kind).with_state(state);
                assert_eq!(SegmentFileName::parse(&name.to_string()), Some(name));
            }
        }
    }

    #[test]
    fn other_files_are_no_segment_files() {
        for name in [
            "",
            "5.log",
            "00000000000000000042",
            "00000000000000000042.logs",
            "00000000000000000042.log.tmp",
            "99999999999999999999.log",
            "+0000000000000000042.log",
            "0000000000000000004é.log",
            "leader-epoch-checkpoint",
            "partition.metadata",
        ] {
            assert_eq!(SegmentFileName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn s11_names_that_kafka_would_claim_are_told_from_those_it_ignores() {
        for ours in
            [LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, MOVE_MARK, "leader-epoch-checkpoint.tmp", "notes"]
        {
            assert!(kafka_ignores_file(ours), "{ours}");
        }
        for claimed in [
            "7",
            "7.notes",
            "-7.notes",
            "+7",
            "x.log",
            "x.snapshot",
            "a.deleted",
            "a.cleaned",
            "a.swap",
            "q.txnindex",
        ] {
            assert!(!kafka_ignores_file(claimed), "{claimed}");
        }
    }

    #[test]
    fn the_partition_is_what_follows_the_last_dash() {
        for (name, topic, partition) in [
            ("a-0", "a", 0),
            ("a-b-12", "a-b", 12),
            ("a--1", "a-", 1),
            ("x.y-delete-3", "x.y-delete", 3),
            ("__consumer_offsets-49", "__consumer_offsets", 49),
        ] {
            let parsed = PartitionDirName::parse(name).unwrap();
            assert_eq!(
                parsed,
                PartitionDirName { partition: tp(topic, partition), kind: PartitionDirKind::Current }
            );
            assert_eq!(partition_dir(&parsed.partition), name);
        }
    }

    #[test]
    fn suffixed_directories_are_told_apart() {
        let hex = "0123456789abcdef0123456789abcdef";
        for kind in PartitionDirKind::SUFFIXED {
            let parsed = PartitionDirName::parse(&format!("a-b-7.{hex}{}", kind.suffix())).unwrap();
            assert_eq!(parsed, PartitionDirName { partition: tp("a-b", 7), kind });
        }
    }

    #[test]
    fn s1_every_other_directory_is_foreign_for_a_reason() {
        use ForeignDir::{BadSuffixed, IllegalTopic, NotANumber, NotTopicPartition};
        for (name, why) in [
            ("", NotTopicPartition),
            ("lost+found", NotTopicPartition),
            ("-0", NotTopicPartition),
            ("a-", NotTopicPartition),
            ("a-x", NotANumber),
            ("a-01", NotANumber),
            ("a-+1", NotANumber),
            ("a-2147483648", NotANumber),
            ("a b-1", IllegalTopic),
            ("a-0-delete", BadSuffixed("-delete")),
            ("a-0.-future", BadSuffixed("-future")),
            ("a-0.x y-stray", BadSuffixed("-stray")),
            ("a.x-stray", NotTopicPartition),
        ] {
            assert_eq!(PartitionDirName::parse(name), Err(why), "{name}");
        }
    }

    #[test]
    fn long_topics_are_cut_for_removal_and_refused_for_a_move() {
        let long = tp(&"t".repeat(249), 12345);
        for name in [delete_dir(&long, 7), stray_dir(&long, 7)] {
            assert_eq!(name.len(), NAME_BYTES_MAX);
            assert_eq!(PartitionDirName::parse(&name).unwrap().partition.partition, 12345);
        }
        assert_eq!(future_dir(&long, 7), None);
        let short = future_dir(&tp("t", 3), u128::MAX).unwrap();
        assert_eq!(short, "t-3.ffffffffffff4fffbfffffffffffffff-future");
        assert_ne!(delete_dir(&tp("t", 3), 1), delete_dir(&tp("t", 3), 2));
    }
}
