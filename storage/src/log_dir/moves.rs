//! The directories of a move between log dirs (storage.md 1.1, KIP-113). The target is filled under a `-future` name; then
//! it takes the name of the replica, and the replica that of a deleted one: in Kafka's order, as a Kafka that starts in
//! between refuses to, where in the other order it would begin an empty log. A mark in the target tells our own start that
//! of two directories of one partition this one is complete. Knows no log: whoever calls has made the target durable.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use protocol::types::TopicPartition;

use super::{DuplicatePartition, FoundKind, FoundPartition, random, rename};
use crate::io::{DirOp, Open, Runtime};
use crate::names::{self, MOVE_MARK};

/// Where the target of a move is to be in the log dir `home`; `None` where its name would be longer than names may be.
pub fn future_path<R: Runtime>(runtime: &R, home: &Path, partition: &TopicPartition) -> Option<PathBuf> {
    names::future_dir(partition, random(runtime)).map(|name| home.join(name))
}

/// Makes the directory of a replica ready to be moved away: what an earlier move may have left in it is gone for good.
///
/// # Errors
/// What the operating system says.
pub async fn forget_mark<R: Runtime>(runtime: &R, replica: &Path) -> io::Result<()> {
    runtime.dir(DirOp::Unlink(replica.join(MOVE_MARK))).await?;
    runtime.dir(DirOp::Sync(replica.to_owned())).await.map(|_| ())
}

/// Marks a directory as complete, durably. Two that are marked are told apart no more than two that are not: so a move that
/// failed half way takes its word back.
///
/// # Errors
/// What the operating system says.
pub async fn mark<R: Runtime>(runtime: &R, replica: &Path) -> io::Result<()> {
    drop(runtime.open(&replica.join(MOVE_MARK), Open::CreateEmpty).await?);
    runtime.dir(DirOp::Sync(replica.to_owned())).await.map(|_| ())
}

/// Gives the target of a move, in the log dir `home`, the name of the replica, durably: from now on it is the one that a
/// start serves. Everything in it is durable. Answers where it is. What it replaces is then renamed by [`super::rename_away`], and
/// the mark taken away by [`remove_mark`].
///
/// # Errors
/// What the operating system says; the directory has either name.
pub async fn promote<R: Runtime>(
    runtime: &R,
    home: &Path,
    future: &Path,
    partition: &TopicPartition,
) -> io::Result<PathBuf> {
    mark(runtime, future).await?;
    let to = home.join(names::partition_dir(partition));
    runtime.dir(DirOp::Rename { from: future.to_owned(), to: to.clone() }).await?;
    runtime.dir(DirOp::Sync(home.to_owned())).await?;
    Ok(to)
}

/// Takes the mark out of a directory that has replaced another for good. One that stays means nothing.
///
/// # Errors
/// What the operating system says.
pub async fn remove_mark<R: Runtime>(runtime: &R, replica: &Path) -> io::Result<()> {
    runtime.dir(DirOp::Unlink(replica.join(MOVE_MARK))).await.map(|_| ())
}

/// Why the directories of some partition cannot be told apart.
#[derive(Debug, thiserror::Error)]
pub enum SettleError {
    /// Two claim to be it, and no move of ours left them.
    #[error(transparent)]
    Duplicate(#[from] DuplicatePartition),
    /// They cannot be looked at, or renamed.
    #[error("{path}: {source}")]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
}

/// A directory that a move has replaced, and that a crash has left in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Whose it is.
    pub partition: TopicPartition,
    /// Where it is.
    pub path: PathBuf,
}

/// Finds what moves that a crash cut short have left twice, over all log dirs. Changes nothing.
///
/// # Errors
/// Two directories of one partition that no move explains, or why nobody can tell.
pub async fn find_replaced<R: Runtime>(
    runtime: &R,
    found: &[FoundPartition],
) -> Result<Vec<Replaced>, SettleError> {
    let current = sorted(found);
    let mut marked = BTreeSet::new();
    for dir in same_partition(&current).flatten() {
        if has_mark(runtime, &dir.path).await? {
            marked.insert(dir.path.as_path());
        }
    }
    Ok(told_apart(&current, &marked)?)
}

/// The same before there is a runtime.
///
/// # Errors
/// See [`find_replaced`].
pub fn glance_at_replaced(found: &[FoundPartition]) -> Result<Vec<Replaced>, SettleError> {
    let current = sorted(found);
    let mut marked = BTreeSet::new();
    for dir in same_partition(&current).flatten() {
        let there = dir.path.join(MOVE_MARK).try_exists();
        if there.map_err(|source| SettleError::Io { path: dir.path.clone(), source })? {
            marked.insert(dir.path.as_path());
        }
    }
    Ok(told_apart(&current, &marked)?)
}

/// The replicas, those of one partition beside each other.
fn sorted(found: &[FoundPartition]) -> Vec<&FoundPartition> {
    let mut current: Vec<_> = found.iter().filter(|dir| dir.kind == FoundKind::Current).collect();
    current.sort_by(|one, other| one.partition.cmp(&other.partition));
    current
}

/// The directories of each partition that has several.
fn same_partition<'a, 'b>(
    current: &'b [&'a FoundPartition],
) -> impl Iterator<Item = &'b [&'a FoundPartition]> {
    current.chunk_by(|one, other| one.partition == other.partition).filter(|same| same.len() > 1)
}

/// Of several directories of one partition the marked one stays.
fn told_apart(
    current: &[&FoundPartition],
    marked: &BTreeSet<&Path>,
) -> Result<Vec<Replaced>, DuplicatePartition> {
    let mut replaced: Vec<Replaced> = Vec::new();
    for same in same_partition(current) {
        let [first, rest @ ..] = same else { continue };
        let mut stays = *first;
        for next in rest {
            let is_next = marked.contains(next.path.as_path());
            if marked.contains(stays.path.as_path()) == is_next {
                return Err(DuplicatePartition {
                    partition: next.partition.clone(),
                    first: stays.path.clone(),
                    second: next.path.clone(),
                });
            }
            let goes = if is_next { std::mem::replace(&mut stays, next) } else { next };
            replaced.push(Replaced { partition: goes.partition.clone(), path: goes.path.clone() });
        }
    }
    Ok(replaced)
}

/// Renames the target of a move in the log dir `home` of which the log itself is nowhere, durably: it is kept, and nobody
/// takes it for a copy of another log. Answers where it is; `None` if there was none.
///
/// # Errors
/// What the operating system says; the directory has either name.
pub async fn set_copy_aside<R: Runtime>(
    runtime: &R,
    home: &Path,
    future: &Path,
    partition: &TopicPartition,
) -> Result<Option<PathBuf>, SettleError> {
    let to = home.join(names::stray_dir(partition, random(runtime)));
    match rename(runtime, home, future, &to).await {
        Ok(is_there) => Ok(is_there.then_some(to)),
        Err(source) => Err(SettleError::Io { path: future.to_owned(), source }),
    }
}

async fn has_mark<R: Runtime>(runtime: &R, replica: &Path) -> Result<bool, SettleError> {
    match runtime.dir(DirOp::Stat(replica.join(MOVE_MARK))).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(SettleError::Io { path: replica.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use protocol::types::TopicName;

    use super::*;
    use crate::io::sim::SimRuntime;

    fn tp() -> TopicPartition {
        TopicPartition::new(TopicName::new("t"), 0)
    }

    fn current(path: &str) -> FoundPartition {
        FoundPartition { partition: tp(), kind: FoundKind::Current, path: path.into() }
    }

    async fn create(runtime: &SimRuntime, dirs: &[&str]) {
        for dir in dirs {
            runtime.dir(DirOp::CreateAll((*dir).into())).await.unwrap();
        }
    }

    #[test]
    fn of_two_directories_of_a_partition_the_one_with_the_mark_stays() {
        let runtime = SimRuntime::new(1);
        let inside = runtime.clone();
        runtime.block_on(async move {
            let future = "/b/t-0.0123456789abcdef0123456789abcdef-future";
            create(&inside, &["/a/t-0", future]).await;
            let found = [current("/a/t-0"), current("/b/t-0")];
            promote(&inside, Path::new("/b"), Path::new(future), &tp()).await.unwrap();
            let replaced = find_replaced(&inside, &found).await.unwrap();
            assert_eq!(replaced, [Replaced { partition: tp(), path: "/a/t-0".into() }]);
            set_copy_aside(&inside, Path::new("/a"), Path::new("/a/t-0"), &tp()).await.unwrap().unwrap();
            let again = set_copy_aside(&inside, Path::new("/a"), Path::new("/a/t-0"), &tp()).await.unwrap();
            assert_eq!(again, None, "once");
            assert_eq!(find_replaced(&inside, &[current("/b/t-0")]).await.unwrap(), []);
            remove_mark(&inside, Path::new("/b/t-0")).await.unwrap();
            remove_mark(&inside, Path::new("/b/t-0")).await.unwrap();
        });
    }

    #[test]
    fn directories_that_no_move_explains_are_told_and_left_alone() {
        let runtime = SimRuntime::new(1);
        let inside = runtime.clone();
        runtime.block_on(async move {
            create(&inside, &["/a/t-0", "/b/t-0"]).await;
            let found = [current("/a/t-0"), current("/b/t-0")];
            let error = find_replaced(&inside, &found).await.unwrap_err();
            assert_eq!(error.to_string(), "/a/t-0 and /b/t-0 both hold t-0: delete one of them");
            for dir in ["/a/t-0", "/b/t-0"] {
                mark(&inside, Path::new(dir)).await.unwrap();
            }
            assert!(find_replaced(&inside, &found).await.is_err(), "two marks say no more than none");
            forget_mark(&inside, Path::new("/a/t-0")).await.unwrap();
            assert_eq!(find_replaced(&inside, &found).await.unwrap().len(), 1);
        });
    }
}
