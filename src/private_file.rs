//! Reads files with rights or keys: others than the owner must not be able to change them.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use az::SaturatingAs as _;
use rustix::fs::{Mode, OFlags};
use thiserror::Error;

/// Bits of the mode with which others than the owner may change the file.
const WRITABLE: u32 = 0o022;
/// Bit of the mode with which everyone on the machine may read the file.
const READABLE: u32 = 0o004;

/// The bytes of a file that only its owner may change.
#[derive(Debug)]
pub struct PrivateFile {
    pub bytes: Vec<u8>,
    /// Says that everyone on the machine may read the file, if they may.
    pub warning: Option<String>,
}

/// Why a file was not read.
#[derive(Debug, Error)]
pub enum PrivateFileError {
    #[error("cannot read {path}: {error}")]
    Unreadable { path: String, error: io::Error },
    #[error("{0} is not a regular file")]
    NotAFile(String),
    #[error(
        "{path} has mode {mode:04o}: others than its owner may write to it; run chmod go-w {path}"
    )]
    Writable { path: String, mode: u32 },
    #[error("{path} is larger than {bytes_max} bytes")]
    TooLarge { path: String, bytes_max: u64 },
}

/// Reads the file at `path`, of `bytes_max` bytes at most. Blocks.
///
/// # Errors
/// When the file cannot be read, is too large, or the group or others may write it.
pub fn read(path: &Path, bytes_max: u64) -> Result<PrivateFile, PrivateFileError> {
    let shown = path.display().to_string();
    let unreadable = |error| PrivateFileError::Unreadable { path: shown.clone(), error };
    // Opening a pipe would wait for its writer otherwise.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from);
    let file = File::from(opened.map_err(unreadable)?);
    // These are of the open file, because the path may lead to another file by now.
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(PrivateFileError::NotAFile(shown));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & WRITABLE != 0 {
        return Err(PrivateFileError::Writable { path: shown, mode });
    }
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len().saturating_as::<u64>() > bytes_max {
        return Err(PrivateFileError::TooLarge { path: shown, bytes_max });
    }
    let warning = (mode & READABLE != 0)
        .then(|| format!("{shown} has mode {mode:04o}: everyone on this machine may read it"));
    Ok(PrivateFile { bytes, warning })
}
