//! What the loader does with files of unfinished work before it looks at the segments (storage.md 7.6): deletions,
//! compactions and splits that a crash interrupted, ours or Kafka's. Idempotent: a crash in here is met the same way.
//! Knows names and, of finished output, where its offsets end.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use protocol::types::Offset;

use super::walk::{Step, Walk};
use crate::io::{DirDone, DirEntry, DirOp, File, Open, Runtime};
use crate::names::{SegmentFileKind, SegmentFileName, SegmentFileState};

/// The plain files of a partition directory, by name.
pub(super) async fn list<R: Runtime>(runtime: &R, dir: &Path) -> io::Result<Vec<DirEntry>> {
    match runtime.dir(DirOp::List(dir.to_owned())).await? {
        DirDone::Entries(entries) => Ok(entries.into_iter().filter(|entry| !entry.is_dir).collect()),
        _ => Ok(Vec::new()),
    }
}

fn named(entries: &[DirEntry]) -> Vec<SegmentFileName> {
    entries.iter().filter_map(|entry| SegmentFileName::parse(&entry.name)).collect()
}

/// Ends unfinished work; answers the files that are left.
pub(super) async fn finish<R: Runtime>(runtime: &R, dir: &Path) -> io::Result<Vec<DirEntry>> {
    let entries = list(runtime, dir).await?;
    let names = named(&entries);
    let has_tmp = entries.iter().any(|entry| entry.name.ends_with(crate::names::TMP_SUFFIX));
    if !has_tmp && names.iter().all(|name| name.state == SegmentFileState::Plain) {
        return Ok(entries);
    }
    tracing::info!(dir = %dir.display(), "removing or completing files of unfinished work");
    drop_unfinished(runtime, dir, &entries, &names).await?;
    complete_swaps(runtime, dir).await?;
    // Nothing of it need be durable: a start after a power cut does the same again, and the next flush syncs the names.
    list(runtime, dir).await
}

/// Removes what was deleted, what was not complete, and swaps of which only a part was renamed: highest bases are
/// renamed first, so that a `.cleaned` file tells that every swap at or above it is incomplete.
async fn drop_unfinished<R: Runtime>(
    runtime: &R,
    dir: &Path,
    entries: &[DirEntry],
    names: &[SegmentFileName],
) -> io::Result<()> {
    let cleaned = |name: &&SegmentFileName| name.state == SegmentFileState::Cleaned;
    let first_cleaned = names.iter().filter(cleaned).map(|name| name.base_offset).min();
    for name in names {
        let gone = match name.state {
            SegmentFileState::Deleted | SegmentFileState::Cleaned => true,
            SegmentFileState::Swap => first_cleaned.is_some_and(|first| name.base_offset >= first),
            SegmentFileState::Plain => false,
        };
        if gone {
            runtime.dir(DirOp::Unlink(dir.join(name.to_string()))).await?;
        }
    }
    for entry in entries.iter().filter(|entry| entry.name.ends_with(crate::names::TMP_SUFFIX)) {
        runtime.dir(DirOp::Unlink(dir.join(&entry.name))).await?;
    }
    Ok(())
}

/// Replaces the segments that complete output covers by that output.
async fn complete_swaps<R: Runtime>(runtime: &R, dir: &Path) -> io::Result<()> {
    let names = named(&list(runtime, dir).await?);
    let swaps: BTreeSet<SegmentFileName> =
        names.iter().filter(|name| name.state == SegmentFileState::Swap).copied().collect();
    let mut covered: Option<(Offset, Offset)> = None;
    let mut begins = BTreeSet::new();
    for swap in swaps.iter().filter(|swap| swap.kind == SegmentFileKind::Log) {
        let end = end_of(runtime, &dir.join(swap.to_string()), swap.base_offset).await?;
        let (low, high) = covered.unwrap_or((swap.base_offset, end));
        covered = Some((low.min(swap.base_offset), high.max(end)));
        begins.insert(swap.base_offset);
    }
    if let Some((low, high)) = covered {
        let is_within = |name: &&SegmentFileName| {
            // A snapshot tells what lies below its offset: the one where the output begins is as good as before.
            let stays = name.kind == SegmentFileKind::Snapshot && begins.contains(&name.base_offset);
            name.state == SegmentFileState::Plain
                && name.base_offset >= low
                && name.base_offset < high
                && !stays
        };
        // Output of which nothing is left ends where it begins, and may lack a file that its source had.
        let is_replaced = |name: &&SegmentFileName| {
            name.state == SegmentFileState::Plain
                && name.kind != SegmentFileKind::Snapshot
                && begins.contains(&name.base_offset)
        };
        for name in names.iter().filter(|name| is_within(name) || is_replaced(name)) {
            tracing::info!(dir = %dir.display(), file = %name, "removing a file that compaction had replaced");
            runtime.dir(DirOp::Unlink(dir.join(name.to_string()))).await?;
        }
        // Else one of them could come back beside the output that holds its offsets, and has a plain name by then.
        runtime.dir(DirOp::Sync(dir.to_owned())).await?;
    }
    for kind in SegmentFileKind::ALL {
        for swap in swaps.iter().filter(|swap| swap.kind == kind) {
            let to = dir.join(swap.with_state(SegmentFileState::Plain).to_string());
            runtime.dir(DirOp::Rename { from: dir.join(swap.to_string()), to }).await?;
        }
    }
    Ok(())
}

/// The offset that follows the last batch of a file.
async fn end_of<R: Runtime>(runtime: &R, path: &Path, base_offset: Offset) -> io::Result<Offset> {
    let file = runtime.open(path, Open::Read).await?;
    let size = file.size().await?;
    let mut walk = Walk::headers(file, 0, size);
    let mut end = base_offset;
    while let Step::Batch(found) = walk.next().await? {
        end = found.next_offset();
    }
    Ok(end)
}
