//! The file of the audit trail. Another file under the name is opened anew, so a rename rotates the
//! file.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The name of stdout.
const STDOUT: &str = "-";
/// The file is for its owner, and may be read by its group.
const MODE: u32 = 0o640;

#[derive(Debug)]
pub(super) struct AuditFile {
    /// `None` for stdout.
    path: Option<PathBuf>,
    file: File,
    id: FileId,
}

/// The device and the inode of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileId(u64, u64);

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        Self(metadata.dev(), metadata.ino())
    }
}

/// Lines on their way into the file, of which a part may have been written.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    bytes: Vec<u8>,
    written: usize,
}

impl Unwritten {
    pub fn push(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
        self.bytes.push(b'\n');
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.written = 0;
    }

    /// Gives up all lines. If one is written in part, the next line begins after a line break.
    pub fn give_up(&mut self) {
        let is_torn = match self.bytes[..self.written].last() {
            Some(last) => *last != b'\n',
            // The line break itself was not written.
            None => self.bytes.first() == Some(&b'\n'),
        };
        self.clear();
        if is_torn {
            self.bytes.push(b'\n');
        }
    }

    /// Goes back to the beginning of a line written in part: another file gets all of it. Such a
    /// file has no torn line to end.
    fn rewind(&mut self) {
        let whole = self.bytes[..self.written].iter().rposition(|byte| *byte == b'\n');
        let is_end_of_torn = self.bytes.first() == Some(&b'\n');
        self.written = whole.map_or(usize::from(is_end_of_torn), |end| end + 1);
    }
}

impl AuditFile {
    /// Opens the file at `path` for appending, or stdout for `-`.
    pub fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new(STDOUT) {
            let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
            let id = FileId::of(&file.metadata()?);
            return Ok(Self { path: None, file, id });
        }
        let (file, id) = open(path)?;
        Ok(Self { path: Some(path.to_owned()), file, id })
    }

    /// Writes all lines. After an error, a repeated call goes on with the rest.
    pub fn write(&mut self, lines: &mut Unwritten) -> io::Result<()> {
        if self.is_moved()? {
            lines.rewind();
            self.reopen()?;
        }
        while lines.written < lines.bytes.len() {
            match self.file.write(&lines.bytes[lines.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => lines.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns true when another file has the name, or none.
    fn is_moved(&self) -> io::Result<bool> {
        let Some(path) = &self.path else { return Ok(false) };
        match fs::metadata(path) {
            Ok(metadata) => Ok(FileId::of(&metadata) != self.id),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn reopen(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            (self.file, self.id) = open(path)?;
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<(File, FileId)> {
    // To open a pipe without a reader would wait for one.
    if fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        let text = "it is a named pipe; give `-` and let the shell make the pipe";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut file = File::options().append(true).create(true).mode(MODE).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && ends_within_a_line(path)? {
        file.write_all(b"\n")?;
    }
    Ok((file, FileId::of(&metadata)))
}

/// Returns true when the last line has no end: the machine has stopped while it was written, or the
/// disk was full.
fn ends_within_a_line(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;

    /// A folder of a test, which is removed with the last of its handles.
    #[derive(Clone, Debug)]
    pub struct Folder(Arc<FolderPath>);

    #[derive(Debug)]
    struct FolderPath(PathBuf);

    impl Folder {
        pub fn temporary() -> Self {
            let name = format!("punctual-audit-{}", uuid::Uuid::from_u128(rand::random()));
            let folder = std::env::temp_dir().join(name);
            fs::create_dir(&folder).unwrap();
            Self(Arc::new(FolderPath(folder)))
        }

        pub fn path(&self, name: &str) -> PathBuf {
            self.0.0.join(name)
        }
    }

    impl Drop for FolderPath {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn lines(lines: &[&str]) -> Unwritten {
        let mut unwritten = Unwritten::default();
        lines.iter().for_each(|line| unwritten.push(line.as_bytes()));
        unwritten
    }

    #[test]
    fn a_line_after_a_torn_one_that_was_given_up_is_whole() {
        let mut unwritten = lines(&["one", "two"]);
        unwritten.written = 6;
        unwritten.give_up();
        unwritten.push(b"lost");
        unwritten.give_up();
        unwritten.push(b"three");
        assert_eq!((unwritten.bytes.as_slice(), unwritten.written), (&b"\nthree\n"[..], 0));
        unwritten.rewind();
        assert_eq!(unwritten.written, 1, "another file has no torn line");
        unwritten.written = unwritten.bytes.len();
        unwritten.give_up();
        assert!(unwritten.bytes.is_empty());
    }

    #[test]
    fn a_renamed_file_keeps_its_lines_and_the_next_go_to_a_new_one() {
        let folder = Folder::temporary();
        let [path, old] = ["audit", "audit.1"].map(|name| folder.path(name));
        let mut file = AuditFile::open(&path).unwrap();
        file.write(&mut lines(&["1", "2"])).unwrap();
        fs::rename(&path, &old).unwrap();
        file.write(&mut lines(&["3"])).unwrap();
        fs::remove_file(&path).unwrap();
        file.write(&mut lines(&["4"])).unwrap();
        file.write(&mut lines(&["5"])).unwrap();
        assert_eq!(fs::read_to_string(&old).unwrap(), "1\n2\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "4\n5\n");
    }

    #[test]
    fn a_line_that_was_written_in_part_is_written_whole_to_another_file() {
        let folder = Folder::temporary();
        let path = folder.path("audit");
        let mut file = AuditFile::open(&path).unwrap();
        let mut torn = lines(&["first", "second", "third"]);
        torn.written = "first\nsec".len();
        fs::remove_file(&path).unwrap();
        file.write(&mut torn).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second\nthird\n");
        let mut torn = lines(&["first", "second"]);
        torn.written = "fir".len();
        file.write(&mut torn).unwrap();
        assert!(fs::read_to_string(&path).unwrap().ends_with("third\nst\nsecond\n"));
    }

    #[test]
    fn a_line_without_an_end_is_ended_before_the_first_one() {
        let folder = Folder::temporary();
        let path = folder.path("audit");
        fs::write(&path, "whole\ntorn").unwrap();
        AuditFile::open(&path).unwrap().write(&mut lines(&["next"])).unwrap();
        AuditFile::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole\ntorn\nnext\n");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut file = AuditFile::open(Path::new("/dev/full")).unwrap();
        let error = file.write(&mut lines(&["1"])).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
