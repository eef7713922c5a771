//! The voucher of a log dir: what `.lock` says while every log of the dir is in order, so that a start after `kill -9` need
//! not doubt what the kernel holds. It names the running kernel, the mount, the directory and the lock file, and is good
//! for exactly these: after a power cut, on another mount or in a copy it is a text without meaning. It is never synced,
//! as only this kernel may believe it. Kafka leaves the file empty, and ignores what is in it.
//!
//! The unique id of a mount (Linux 6.8) is used for no other mount while the kernel runs. Without it there is no voucher:
//! a file system that lost writes and was mounted again would look the same.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Changes with the kernel's start.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// No voucher of ours is longer.
pub(super) const BYTES_MAX: usize = 512;

/// What a voucher is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) boot_id: String,
    pub(super) mount_id: u64,
    /// Device and inode.
    pub(super) dir: (u64, u64),
    pub(super) lock: (u64, u64),
}

impl Place {
    /// Where a log dir and its lock file are; `None` where the kernel does not tell all of it.
    pub(super) fn of(log_dir: &Path, lock: &File) -> Option<Self> {
        #[allow(
            clippy::disallowed_methods,
            reason = "the lock belongs to the process, not to a shard's runtime"
        )]
        let boot_id = std::fs::read_to_string(BOOT_ID).ok()?;
        let inode = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        Some(Self {
            boot_id: boot_id.trim().to_owned(),
            mount_id: mount_id(log_dir)?,
            dir: inode(std::fs::metadata(log_dir).ok()?),
            lock: inode(lock.metadata().ok()?),
        })
    }

    /// The voucher.
    pub(super) fn text(&self) -> String {
        let Self { boot_id, mount_id, dir, lock } = self;
        format!(
            "odradek: all logs were in order when this was written, version 1\nboot {boot_id}\nmount {mount_id}\n\
             directory {}:{}\nlock {}:{}\n",
            dir.0, dir.1, lock.0, lock.1
        )
    }

    /// Whether the content of the lock file is the voucher of this very place.
    pub(super) fn is_vouched_by(&self, content: &[u8]) -> bool {
        content == self.text().as_bytes()
    }

    /// Whether everything in the dir is on its mount: what is linked in from elsewhere may have lost something of its own.
    #[allow(clippy::disallowed_methods, reason = "the lock belongs to the process, not to a shard's runtime")]
    pub(super) fn is_all_of(&self, log_dir: &Path) -> io::Result<bool> {
        for entry in std::fs::read_dir(log_dir)? {
            if mount_id(&entry?.path()) != Some(self.mount_id) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The unique id of the mount that a path leads to.
fn mount_id(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path ends with a zero byte, and `found` is as large as the kernel's structure.
    let done = unsafe {
        libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_MNT_ID_UNIQUE, found.as_mut_ptr())
    };
    if done != 0 {
        return None;
    }
    // SAFETY: the call has filled it, and every field is a number, for which zeros are a value.
    let found = unsafe { found.assume_init() };
    (found.stx_mask & libc::STATX_MNT_ID_UNIQUE != 0).then_some(found.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place { boot_id: "b00t".to_owned(), mount_id: 7, dir: (1, 2), lock: (1, 3) }
    }

    #[test]
    fn a_voucher_is_good_for_one_boot_mount_directory_and_lock_file() {
        let ours = place();
        let text = ours.text();
        assert!(text.len() <= BYTES_MAX && ours.is_vouched_by(text.as_bytes()));
        for other in [
            Place { boot_id: "other".to_owned(), ..place() },
            Place { mount_id: 8, ..place() },
            Place { dir: (2, 2), ..place() },
            Place { dir: (1, 4), ..place() },
            Place { lock: (2, 3), ..place() },
            Place { lock: (1, 4), ..place() },
        ] {
            assert!(!other.is_vouched_by(text.as_bytes()), "{other:?}");
        }
    }

    #[test]
    fn nothing_but_the_whole_text_is_a_voucher() {
        let ours = place();
        let text = ours.text();
        for len in 0..text.len() {
            assert!(!ours.is_vouched_by(text.get(..len).unwrap().as_bytes()), "{len} bytes");
        }
        for garbage in [format!("{text}\n"), format!(" {text}"), text.to_uppercase(), "\0".repeat(text.len())]
        {
            assert!(!ours.is_vouched_by(garbage.as_bytes()), "{garbage}");
        }
    }

    #[test]
    fn what_is_linked_in_from_another_mount_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let lock = tempfile::tempfile().unwrap();
        // A kernel before 6.8 has no vouchers.
        let Some(place) = Place::of(dir.path(), &lock) else { return };
        assert_eq!(Place::of(dir.path(), &lock), Some(place.clone()), "it does not change");
        std::fs::create_dir(dir.path().join("t-0")).unwrap();
        assert!(place.is_all_of(dir.path()).unwrap());
        std::os::unix::fs::symlink("/proc", dir.path().join("t-1")).unwrap();
        assert!(!place.is_all_of(dir.path()).unwrap());
    }
}
