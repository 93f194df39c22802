//! The auth file on disk.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::credential::jwt::keys::KeySet;
use super::credential::jwt::slot::KeySource;
use super::document::{self, NodeRules, Remark};
use super::policy::Policy;
use crate::private_file::{self, PrivateFile, PrivateFileError};

/// A file of 1,000 principals has about 250 KiB.
const BYTES_MAX: u64 = 4 << 20;

/// Identifies one state of the file, as far as its metadata tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    mode: u32,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn new(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            mode: metadata.mode(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Returns the stamp of the file at `path`. Symbolic links are followed, because Kubernetes
    /// replaces a mounted file by changing a link.
    pub fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|metadata| Self::new(&metadata))
    }
}

/// The SHA-256 of the bytes of the auth file and of the key files that it names.
pub type Content = [u8; 32];

/// A file read without a problem.
#[derive(Debug)]
pub struct Loaded {
    pub policy: Policy,
    pub content: Content,
    /// The files with the keys of issuers, which are read together with the auth file.
    pub key_files: Vec<PathBuf>,
    pub warnings: Vec<String>,
}

#[derive(Debug, Error)]
pub enum FileError {
    #[error(transparent)]
    Unread(#[from] PrivateFileError),
    #[error("{0} is not UTF-8")]
    NotText(String),
    #[error("{}", told(path, problems))]
    Wrong { path: String, problems: Vec<Remark> },
}

impl FileError {
    /// Returns the problems one by one.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Wrong { path, problems } => {
                problems.iter().map(|problem| format!("{path}: {problem}")).collect()
            }
            other => vec![other.to_string()],
        }
    }
}

fn told(path: &str, problems: &[Remark]) -> String {
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    format!("{path}: {}", problems.join("; "))
}

/// Reads the file at `path`, and all key files named there. Blocks.
///
/// # Errors
/// When a file cannot be read, the group or others may write a file, or the text has problems.
pub fn load(path: &Path, rules: NodeRules) -> Result<Loaded, FileError> {
    let shown = path.display().to_string();
    let PrivateFile { bytes, warning } = private_file::read(path, BYTES_MAX)?;
    let mut content = Sha256::new_with_prefix(&bytes);
    let text = String::from_utf8(bytes).map_err(|_bytes| FileError::NotText(shown.clone()))?;
    let read = document::read(&text, rules)
        .map_err(|problems| FileError::Wrong { path: shown.clone(), problems })?;
    let (mut key_files, mut problems) = (Vec::new(), Vec::new());
    for (issuer, line) in read.policy.issuers().all().iter().zip(read.issuer_lines) {
        let KeySource::File(file) = &issuer.keys.source else { continue };
        let file = path.parent().unwrap_or(Path::new("")).join(file);
        match keys_of(&file) {
            Ok((bytes, set)) => {
                content.update(bytes);
                issuer.keys.take_file(set);
            }
            Err(text) => problems.push(Remark { line, text }),
        }
        key_files.push(file);
    }
    if !problems.is_empty() {
        return Err(FileError::Wrong { path: shown, problems });
    }
    let warnings = read.warnings.iter().map(|warning| format!("{shown}: {warning}"));
    let warnings = warnings.chain(warning).collect();
    Ok(Loaded { policy: read.policy, content: content.finalize().into(), key_files, warnings })
}

fn keys_of(path: &Path) -> Result<(Vec<u8>, KeySet), String> {
    let file = private_file::read(path, BYTES_MAX).map_err(|error| error.to_string())?;
    let set = KeySet::read(&file.bytes)
        .map_err(|text| format!("{} is no key set (JWKS): {text}", path.display()))?;
    Ok((file.bytes, set))
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::*;

    /// A file deleted with the test.
    pub(in crate::access) struct Temporary(pub(in crate::access) PathBuf);

    impl Temporary {
        pub(in crate::access) fn new(text: &str) -> Self {
            let name = format!("punctual-auth-{:032x}", rand::random::<u128>());
            let path = std::env::temp_dir().join(name);
            let file = Self(path);
            file.write(text);
            file
        }

        pub(in crate::access) fn write(&self, text: &str) {
            fs::write(&self.0, text).unwrap();
            self.chmod(0o600);
        }

        pub(in crate::access) fn chmod(&self, mode: u32) {
            fs::set_permissions(&self.0, fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            fs::remove_file(&self.0).ok();
        }
    }

    pub(in crate::access) const OPERATOR: &str = "version = 1\n[principals.ann]\noperate = true\n";

    #[test]
    fn a_file_that_others_may_write_is_refused() {
        let file = Temporary::new(OPERATOR);
        for mode in [0o620, 0o602, 0o666, 0o777] {
            file.chmod(mode);
            let error = load(&file.0, NodeRules::NONE).unwrap_err();
            let is_told = matches!(error, FileError::Unread(PrivateFileError::Writable { .. }));
            assert!(is_told, "{error}");
            assert!(error.to_string().contains("chmod go-w"), "{error}");
        }
    }

    #[test]
    fn a_file_that_everybody_may_read_is_taken_with_a_warning() {
        let file = Temporary::new(OPERATOR);
        let is_warned = |mode| {
            file.chmod(mode);
            let warnings = load(&file.0, NodeRules::NONE).unwrap().warnings;
            warnings.iter().any(|warning| warning.contains("may read it"))
        };
        assert!(is_warned(0o644));
        assert!(!is_warned(0o640) && !is_warned(0o400));
    }

    #[test]
    fn what_is_no_auth_file_is_told() {
        let unread = |path: &str| match load(Path::new(path), NodeRules::NONE).unwrap_err() {
            FileError::Unread(error) => error,
            other => panic!("{other}"),
        };
        assert!(matches!(unread("/nowhere"), PrivateFileError::Unreadable { .. }));
        assert!(matches!(unread("/dev/null"), PrivateFileError::NotAFile(_)));
        let file = Temporary::new("");
        fs::write(&file.0, b"version = 1 # \xff").unwrap();
        assert!(matches!(load(&file.0, NodeRules::NONE), Err(FileError::NotText(_))));
        file.write("versio = 1\nx = 2\n");
        let lines = load(&file.0, NodeRules::NONE).unwrap_err().lines();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines.iter().all(|line| line.contains("line ")), "{lines:?}");
    }

    #[test]
    fn a_file_without_an_end_is_not_read_whole() {
        let file = Temporary::new("");
        fs::File::options().write(true).open(&file.0).unwrap().set_len(BYTES_MAX + 1).unwrap();
        let error = load(&file.0, NodeRules::NONE).unwrap_err();
        assert!(matches!(error, FileError::Unread(PrivateFileError::TooLarge { .. })), "{error}");
    }
}
