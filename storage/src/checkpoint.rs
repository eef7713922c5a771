//! Checkpoint files: the text format that Kafka uses for offsets and leader epochs (storage.md 1.5), and how a small
//! file is replaced as a whole. Knows neither what the offsets mean nor who may write (S-8: [`crate::log_dir`]).
//!
//! ```text
//! 0                 version
//! 2                 number of entries
//! topicA 0 1234     fields, parted by blanks
//! topicB 7 99
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use protocol::types::{Offset, TopicName, TopicPartition};

use crate::io::{DirOp, File, Open, Runtime};
use crate::names::TMP_SUFFIX;

const VERSION: i32 = 0;

/// Why the content of a checkpoint file is not one. Lines count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The bytes are not UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// The first line is a number, but not the version we know.
    #[error("version {0} is not known")]
    UnknownVersion(i32),
    /// A line is not of the expected form.
    #[error("line {0} is malformed")]
    MalformedLine(usize),
    /// The second line claims another number of entries.
    #[error("{claimed} entries announced, {found} found")]
    WrongCount {
        /// What the second line says.
        claimed: i32,
        /// Entries that are there.
        found: usize,
    },
}

/// Prints entries, each already a line without its end.
pub(crate) fn print(entries: impl ExactSizeIterator<Item = String>) -> String {
    let mut text = format!("{VERSION}\n{}\n", entries.len());
    for entry in entries {
        text.push_str(&entry);
        text.push('\n');
    }
    text
}

/// Reads lines of exactly `N` fields; `entry` answers `None` for a malformed one. As lenient as Kafka's reader: any
/// run of blanks parts fields, blanks at the end are ignored, an empty file or a lone version line has no entries.
pub(crate) fn parse<const N: usize>(
    content: &[u8],
    mut entry: impl FnMut([&str; N]) -> Option<()>,
) -> Result<(), CheckpointError> {
    let text = std::str::from_utf8(content).map_err(|_| CheckpointError::NotUtf8)?;
    let mut lines = (1..).zip(JavaLines(text));
    let Some((_, version)) = lines.next() else { return Ok(()) };
    match version.parse() {
        Ok(VERSION) => {}
        Ok(other) => return Err(CheckpointError::UnknownVersion(other)),
        Err(_) => return Err(CheckpointError::MalformedLine(1)),
    }
    let Some((_, count)) = lines.next() else { return Ok(()) };
    let claimed: i32 = count.parse().map_err(|_| CheckpointError::MalformedLine(2))?;
    let mut found = 0_usize;
    for (number, line) in lines {
        fields(line).and_then(&mut entry).ok_or(CheckpointError::MalformedLine(number))?;
        found += 1;
    }
    if usize::try_from(claimed) != Ok(found) {
        return Err(CheckpointError::WrongCount { claimed, found });
    }
    Ok(())
}

/// Lines as Java's `readLine` sees them: ended by `\n`, `\r` or `\r\n`, the last one by the end of the text.
struct JavaLines<'a>(&'a str);

impl<'a> Iterator for JavaLines<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.0.is_empty() {
            return None;
        }
        let Some((line, rest)) = self.0.split_once(['\n', '\r']) else {
            return Some(std::mem::take(&mut self.0));
        };
        let ended_by_return = self.0.as_bytes().get(line.len()) == Some(&b'\r');
        self.0 = if ended_by_return { rest.strip_prefix('\n').unwrap_or(rest) } else { rest };
        Some(line)
    }
}

/// Splits a line into exactly `N` fields. A blank in front makes an empty first field, as in Kafka, and so one too
/// many.
fn fields<const N: usize>(line: &str) -> Option<[&str; N]> {
    let blank = |c: char| matches!(c, ' ' | '\t' | '\x0b' | '\x0c');
    if line.starts_with(blank) {
        return None;
    }
    let mut parts = line.split(blank).filter(|part| !part.is_empty());
    let mut out = [""; N];
    for slot in &mut out {
        *slot = parts.next()?;
    }
    parts.next().is_none().then_some(out)
}

/// The entries of one offset checkpoint file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffsetCheckpoint {
    /// An offset per partition; what it means depends on the file.
    pub offsets: BTreeMap<TopicPartition, Offset>,
}

impl OffsetCheckpoint {
    /// Reads a file's content. Of two lines for one partition the later counts, as in Kafka.
    ///
    /// # Errors
    /// What is malformed.
    pub fn parse(content: &[u8]) -> Result<Self, CheckpointError> {
        let mut offsets = BTreeMap::new();
        parse(content, |[topic, partition, offset]| {
            let key = TopicPartition::new(TopicName::new(topic), partition.parse().ok()?);
            offsets.insert(key, Offset::new(offset.parse().ok()?));
            Some(())
        })?;
        Ok(Self { offsets })
    }

    /// The file's content, in the order of the partitions.
    pub fn to_text(&self) -> String {
        print(self.offsets.iter().map(|(key, offset)| format!("{} {} {offset}", key.topic, key.partition)))
    }
}

/// The file that a replacement of `path` is written to first.
pub fn tmp_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(TMP_SUFFIX);
    PathBuf::from(name)
}

/// Replaces a file as a whole, durably: a crash at any point leaves the old content or the new. The file is written
/// as `<path>.tmp`, synced, renamed over `path`, and the directory is synced.
///
/// One replacement of a path at a time; the caller sees to it. When the future is dropped the file has the old or
/// the new content, and `<path>.tmp` may be left behind, which every reader ignores.
///
/// # Errors
/// What the operating system says; the file then has the old or the new content.
pub async fn replace_file<R: Runtime>(runtime: &R, path: &Path, content: Bytes) -> io::Result<()> {
    let tmp = tmp_path(path);
    let file = runtime.open(&tmp, Open::CreateEmpty).await?;
    write_all(&file, content, 0).await?;
    file.sync_data().await?;
    drop(file);
    runtime.dir(DirOp::Rename { from: tmp, to: path.to_owned() }).await?;
    sync_parent(runtime, path).await
}

/// Makes the names in the directory of `path` durable.
///
/// # Errors
/// What the operating system says.
// Not an async function: a simulation tells the callers apart.
#[track_caller]
pub fn sync_parent<R: Runtime>(runtime: &R, path: &Path) -> impl Future<Output = io::Result<()>> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = runtime.dir(DirOp::Sync(parent.to_owned()));
    async move { synced.await.map(|_| ()) }
}

/// Writes everything, continuing short writes.
///
/// # Errors
/// What the operating system says; `WriteZero` if it takes nothing.
pub async fn write_all<F: File>(file: &F, mut content: Bytes, mut at: u64) -> io::Result<()> {
    while !content.is_empty() {
        let written = file.write_at(content.clone(), at).await?.min(content.len());
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let _ = content.split_to(written);
        at = at.saturating_add(u64::try_from(written).unwrap_or(u64::MAX));
    }
    Ok(())
}

/// Reads a small file as a whole; `None` if there is none.
///
/// # Errors
/// What the operating system says; `FileTooLarge` above `bytes_max`, before anything is read.
pub async fn read_file<R: Runtime>(runtime: &R, path: &Path, bytes_max: u64) -> io::Result<Option<Bytes>> {
    let file = match runtime.open(path, Open::Read).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let size = file.size().await?;
    if size > bytes_max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let len = usize::try_from(size).map_err(|_| io::ErrorKind::FileTooLarge)?;
    Ok(Some(file.read_at(0, len).await?.freeze()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offsets(entries: &[(&str, i32, i64)]) -> OffsetCheckpoint {
        let entry = |&(topic, partition, offset): &(&str, i32, i64)| {
            (TopicPartition::new(TopicName::new(topic), partition), Offset::new(offset))
        };
        OffsetCheckpoint { offsets: entries.iter().map(entry).collect() }
    }

    #[test]
    fn the_file_has_kafkas_bytes() {
        let text = "0\n2\ntopicA 0 1234\ntopicB 7 99\n";
        let expected = offsets(&[("topicB", 7, 99), ("topicA", 0, 1234)]);
        assert_eq!(expected.to_text(), text);
        assert_eq!(OffsetCheckpoint::parse(text.as_bytes()), Ok(expected));
        assert_eq!(OffsetCheckpoint::default().to_text(), "0\n0\n");
    }

    #[test]
    fn an_empty_file_and_a_lone_version_have_no_entries() {
        for text in ["", "0", "0\n", "0\n0", "0\r\n0\r\n"] {
            assert_eq!(OffsetCheckpoint::parse(text.as_bytes()), Ok(OffsetCheckpoint::default()), "{text:?}");
        }
    }

    #[test]
    fn the_reader_is_as_lenient_as_kafkas() {
        let expected = Ok(offsets(&[("t", 1, 2), ("u", 3, -4)]));
        for text in [
            "0\n2\nt 1 2\nu 3 -4",
            "0\n2\nt \t 1\x0b2  \nu 3 -4\n",
            "0\r2\ru 3 -4\rt 1 2",
            "+0\n2\nt +1 2\r\nu 3 -4\r\n",
        ] {
            assert_eq!(OffsetCheckpoint::parse(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(OffsetCheckpoint::parse(b"0\n2\nt 1 2\nt 1 9\n"), Ok(offsets(&[("t", 1, 9)])));
    }

    #[test]
    fn malformed_files_say_where() {
        use CheckpointError::{MalformedLine, NotUtf8, UnknownVersion, WrongCount};
        for (text, error) in [
            (&b"\xff"[..], NotUtf8),
            (b"\n0\n", MalformedLine(1)),
            (b"0 \n0\n", MalformedLine(1)),
            (b"1\n0\n", UnknownVersion(1)),
            (b"0\nx\n", MalformedLine(2)),
            (b"0\n\n", MalformedLine(2)),
            (b"0\n1\n t 1 2\n", MalformedLine(3)),
            (b"0\n1\nt 1\n", MalformedLine(3)),
            (b"0\n1\nt 1 2 3\n", MalformedLine(3)),
            (b"0\n1\nt 1 2\n\n", MalformedLine(4)),
            (b"0\n1\nt 1 99999999999999999999\n", MalformedLine(3)),
            (b"0\n2\nt 1 2\n", WrongCount { claimed: 2, found: 1 }),
            (b"0\n0\nt 1 2\n", WrongCount { claimed: 0, found: 1 }),
            (b"0\n-1\n", WrongCount { claimed: -1, found: 0 }),
            (b"0\n2147483647\n", WrongCount { claimed: i32::MAX, found: 0 }),
        ] {
            assert_eq!(OffsetCheckpoint::parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn the_scratch_file_is_the_name_with_tmp_behind_it() {
        assert_eq!(tmp_path(Path::new("/d/a.b")), Path::new("/d/a.b.tmp"));
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(
            entries in prop::collection::btree_map(("[a-zA-Z0-9._-]{1,20}", any::<i32>()), any::<i64>(), 0..20)
        ) {
            let flat: Vec<_> = entries.iter().map(|((t, p), o)| (t.as_str(), *p, *o)).collect();
            let checkpoint = offsets(&flat);
            prop_assert_eq!(OffsetCheckpoint::parse(checkpoint.to_text().as_bytes()), Ok(checkpoint));
        }
    }
}
