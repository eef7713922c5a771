//! `partition.metadata`: the topic id of a partition directory (storage.md 1.6, KIP-516). Called by the log, which
//! writes it before the first record byte (S-10) and compares it when it opens.
//!
//! ```text
//! version: 0
//! topic_id: <22 characters of base64url>        no line end behind it
//! ```

use std::io;
use std::path::Path;

use bytes::Bytes;
use protocol::types::TopicId;

use crate::checkpoint::{read_file, replace_file};
use crate::io::Runtime;
use crate::names::PARTITION_METADATA;

const FILE_BYTES_MAX: u64 = 4096;

/// Why the content of a `partition.metadata` is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionMetadataError {
    /// A line is missing or not of the form `name: value`.
    #[error("line {0} is malformed")]
    MalformedLine(usize),
    /// The version is negative.
    #[error("version {0} is not known")]
    UnknownVersion(i32),
    /// The topic id is all zero, which is no id.
    #[error("the topic id is zero")]
    ZeroTopicId,
    /// The file is far larger than one that holds an id.
    #[error("the file is too large to be one")]
    TooLarge,
}

/// Why the topic id of a directory could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadTopicIdError {
    /// The file is malformed.
    #[error("partition.metadata: {0}")]
    Malformed(#[from] PartitionMetadataError),
    /// The file could not be read.
    #[error("partition.metadata: {0}")]
    Io(#[from] io::Error),
}

/// Reads the content. Later versions are taken as this one, as Kafka does; names are not looked at.
///
/// # Errors
/// What is malformed.
pub fn parse(content: &[u8]) -> Result<TopicId, PartitionMetadataError> {
    let text = std::str::from_utf8(content).map_err(|_| PartitionMetadataError::MalformedLine(1))?;
    let mut lines = text.lines();
    let version: i32 =
        value(lines.next()).and_then(|v| v.parse().ok()).ok_or(PartitionMetadataError::MalformedLine(1))?;
    if version < 0 {
        return Err(PartitionMetadataError::UnknownVersion(version));
    }
    let id = value(lines.next()).and_then(TopicId::parse).ok_or(PartitionMetadataError::MalformedLine(2))?;
    if id.is_zero() { Err(PartitionMetadataError::ZeroTopicId) } else { Ok(id) }
}

/// What follows a colon and at least one blank.
fn value(line: Option<&str>) -> Option<&str> {
    let (_, rest) = line?.split_once(':')?;
    let value = rest.trim_start_matches([' ', '\t']);
    (value.len() < rest.len() && !value.contains(':')).then_some(value)
}

/// The content.
pub fn print(topic_id: TopicId) -> String {
    format!("version: 0\ntopic_id: {topic_id}")
}

/// The topic id of a partition directory; `None` if it has none.
///
/// # Errors
/// The file is malformed or cannot be read.
pub async fn read<R: Runtime>(runtime: &R, dir: &Path) -> Result<Option<TopicId>, ReadTopicIdError> {
    match read_file(runtime, &dir.join(PARTITION_METADATA), FILE_BYTES_MAX).await {
        Ok(Some(content)) => Ok(Some(parse(&content)?)),
        Ok(None) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            Err(PartitionMetadataError::TooLarge.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Gives a partition directory its topic id, durably.
///
/// # Errors
/// What the operating system says.
pub async fn write<R: Runtime>(runtime: &R, dir: &Path, topic_id: TopicId) -> io::Result<()> {
    replace_file(runtime, &dir.join(PARTITION_METADATA), Bytes::from(print(topic_id))).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::DirOp;
    use crate::io::sim::SimRuntime;

    const ID: TopicId = TopicId::new([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);

    #[test]
    fn the_file_has_kafkas_bytes() {
        let text = "version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA";
        assert_eq!(print(ID), text);
        assert_eq!(parse(text.as_bytes()), Ok(ID));
    }

    #[test]
    fn later_versions_and_line_ends_are_accepted() {
        assert_eq!(parse(b"version:  7\r\ntopic_id:\tAQIDBAUGBwgJCgsMDQ4PEA\n"), Ok(ID));
    }

    #[test]
    fn malformed_files_say_why() {
        use PartitionMetadataError::{MalformedLine, UnknownVersion, ZeroTopicId};
        for (text, error) in [
            (&b""[..], MalformedLine(1)),
            (b"\xff", MalformedLine(1)),
            (b"version:0\n", MalformedLine(1)),
            (b"version: x\n", MalformedLine(1)),
            (b"version: -1\n", UnknownVersion(-1)),
            (b"version: 0", MalformedLine(2)),
            (b"version: 0\ntopic_id: short", MalformedLine(2)),
            (b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", ZeroTopicId),
        ] {
            assert_eq!(parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_a_missing_file_is_no_error() {
        let runtime = SimRuntime::new(1);
        let inside = runtime.clone();
        runtime.block_on(async move {
            let dir = Path::new("/d/t-0");
            inside.dir(DirOp::CreateAll(dir.to_owned())).await.unwrap();
            assert_eq!(read(&inside, dir).await.unwrap(), None);
            write(&inside, dir, ID).await.unwrap();
            assert_eq!(read(&inside, dir).await.unwrap(), Some(ID));
        });
    }
}
