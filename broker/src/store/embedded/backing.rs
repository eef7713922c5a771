//! The file under redb, without holes: what redb has made longer is on the disk before it counts. A commit then finds
//! its room in the file, so that a topic can be deleted on a full disk. Knows no pages; used by `embedded`.

use std::fs::File;
use std::io;
use std::path::Path;

use redb::{DatabaseError, StorageBackend, backends::FileBackend};

/// Zeros are written in such pieces.
static PIECE: [u8; 64 << 10] = [0; 64 << 10];

/// A locked file without holes.
#[derive(Debug)]
pub(super) struct Backing(FileBackend);

impl Backing {
    /// Opens or creates the file and locks it.
    ///
    /// # Errors
    /// What the operating system says, or that another process has it open.
    #[allow(clippy::disallowed_methods, reason = "redb's file is not of the runtime: redb blocks")]
    pub(super) fn open(path: &Path) -> Result<Self, DatabaseError> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        FileBackend::new(file).map(Self)
    }

    fn fill(&self, from: u64, to: u64) -> io::Result<()> {
        let mut at = from;
        while at < to {
            let len = to.saturating_sub(at).min(PIECE.len() as u64);
            let piece = usize::try_from(len).ok().and_then(|len| PIECE.get(..len)).unwrap_or(&PIECE);
            self.0.write(at, piece)?;
            at = at.saturating_add(len);
        }
        Ok(())
    }
}

impl StorageBackend for Backing {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.0.read(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let before = self.0.len()?;
        let filled = self.fill(before, len);
        // Shorter than it was or asked to be shorter; a part of what does not fit is given back.
        self.0.set_len(if filled.is_ok() { len } else { before })?;
        filled
    }

    fn sync_data(&self, eventual: bool) -> io::Result<()> {
        self.0.sync_data(eventual)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// Whether an error says that there is no room.
pub(super) fn is_full(error: &redb::Error) -> bool {
    matches!(error, redb::Error::Io(error) if storage::io::is_full(error))
}
