//! Moves between log dirs on the stage: at each point the log is there once, with everything that was acknowledged; a copy
//! that was not finished can be gone on with, and is then the same as its log.

use std::path::{Path, PathBuf};

use protocol::types::TopicPartition;
use storage::io::sim::SimRuntime;
use storage::log::{Log, OpenOptions, TailBudget};
use storage::log_dir::moves as dirs;

use crate::known::{Complaint, DIR, Known, OTHER, SimLog, complain, look};
use crate::stage::{NOW, Stage};

/// One batch or two at once.
const STEP_BYTES: usize = 300;

/// A log that is being copied.
pub struct Copy {
    pub log: SimLog,
    path: PathBuf,
    home: &'static str,
}

/// The log dir that a log is in.
pub fn home_of(log: &SimLog) -> &'static str {
    if log.dir().starts_with(OTHER) { OTHER } else { DIR }
}

/// Goes on with a copy that a crash has cut short, to its end: then it is the same as its log.
pub async fn resume(
    runtime: &SimRuntime,
    path: &Path,
    source: &SimLog,
    options: OpenOptions,
) -> Result<(), Complaint> {
    let name = source.partition().clone();
    let copy = match Log::open(runtime.clone(), path, name.clone(), options).await {
        Ok(copy) => copy,
        Err(error) => return complain("copy does not open", format!("{name}: {error}")),
    };
    if let Err(error) = copy.cut_to_common(source, source.log_end_offset()).await {
        return complain("copy cannot be cut", format!("{name}: {error}"));
    }
    loop {
        match copy.copy_from(source, STEP_BYTES, NOW).await {
            Ok(copied) if copied.is_all => break,
            Ok(_) => {}
            Err(error) => return complain("copy cannot go on", format!("{name}: {error}")),
        }
    }
    let (of_copy, of_source) = (look(&copy).await?, look(source).await?);
    copy.abandon().await;
    if !of_copy.is_copy_of(&of_source) {
        return complain("copy differs", format!("{of_copy:?}, not {of_source:?}"));
    }
    Ok(())
}

impl Stage {
    /// Begins to copy a log to the log dir that it is not in.
    pub async fn begin_move(&self, name: &TopicPartition) {
        let source = self.log(name);
        let home = if home_of(&source) == DIR { OTHER } else { DIR };
        dirs::forget_mark(&self.runtime, source.dir()).await.unwrap();
        let path = dirs::future_path(&self.runtime, Path::new(home), name).unwrap();
        let options = OpenOptions {
            topic_id: source.topic_id(),
            log_start_offset: source.log_start_offset(),
            ..OpenOptions::new((*source.config()).clone(), TailBudget::new(1 << 20))
        };
        let log = Log::open(self.runtime.clone(), &path, name.clone(), options).await.unwrap();
        self.copies.borrow_mut().insert(name.clone(), Copy { log, path, home });
    }

    fn copy(&self, name: &TopicPartition) -> SimLog {
        self.copies.borrow().get(name).expect("a copy").log.clone()
    }

    /// Copies so many steps.
    pub async fn copy_some(&self, name: &TopicPartition, steps: usize) {
        for _ in 0..steps {
            self.copy(name).copy_from(&self.log(name), STEP_BYTES, NOW).await.unwrap();
        }
    }

    /// Copies what is left.
    pub async fn copy_all(&self, name: &TopicPartition) {
        while !self.copy(name).copy_from(&self.log(name), STEP_BYTES, NOW).await.unwrap().is_all {}
    }

    /// Lets the copy take the place of the log: everything in it is durable then. Checkpoints are written by no move, so that
    /// what they say of the two dirs is of before.
    pub async fn finish_move(&self, name: &TopicPartition, delay_ms: i64) {
        // Nobody appends from here on, and what was appended is written and copied.
        let source = self.log(name);
        source.until_written(source.log_end_offset()).await.unwrap();
        self.copy_all(name).await;
        let (source, Copy { log: copy, path, home }) =
            (self.log(name), self.copies.borrow_mut().remove(name).expect("a copy"));
        let end = source.log_end_offset();
        assert_eq!(copy.log_end_offset(), end);
        copy.close().await.unwrap();
        self.forget_files(name);
        let (key, from) = (name.clone(), source.dir().to_owned());
        self.allow(move |known| {
            known.identity.retain(|path, _| !path.starts_with(&from));
            let log = known.log(&key);
            log.home = None;
            log.epochs.clear();
            log.producers.clear();
        });
        let to = dirs::promote(&self.runtime, Path::new(home), &path, name).await.unwrap();
        source.abandon().await;
        assert!(self.dir_of(&source).remove_dir(source.dir(), name, delay_ms).await.unwrap());
        let options = OpenOptions {
            topic_id: source.topic_id(),
            recovery_point: end,
            log_start_offset: source.log_start_offset(),
            clean: true,
            ..OpenOptions::new((*source.config()).clone(), TailBudget::new(1 << 20))
        };
        let log = Log::open(self.runtime.clone(), &to, name.clone(), options).await.unwrap();
        assert_eq!(log.log_end_offset(), end);
        self.listen(name, &log);
        self.logs.borrow_mut().insert(name.clone(), log);
        // Whoever waited for a sync of the log that is gone is told now.
        let key = name.clone();
        self.learn(move |known| {
            let log = known.log(&key);
            log.home = Some(home);
            (log.safe, log.written) = (end.get(), end.get());
        });
        dirs::remove_mark(&self.runtime, &to).await.unwrap();
        self.know_identity(to.join("partition.metadata"));
    }

    /// Nobody wants the move any more.
    pub async fn cancel_move(&self, name: &TopicPartition, delay_ms: i64) {
        let Copy { log, path, home } = self.copies.borrow_mut().remove(name).expect("a copy");
        log.abandon().await;
        let dir = self.dir_at(home);
        assert!(dir.remove_dir(&path, name, delay_ms).await.unwrap());
    }
}

/// Both log dirs.
pub fn with_two(mut known: Known) -> Known {
    known.has_other = true;
    known
}
