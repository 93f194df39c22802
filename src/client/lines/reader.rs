//! Reads the input line by line in its own thread, so a read that waits forever (a terminal, an
//! idle pipe) does not block the run.
//!
//! Memory for unsent lines is limited: the channel, its chunks and each line have a maximum size.

use std::io::{self, BufRead as _, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::line::{Naming, TaskLine, WrongKind, WrongLine};

/// Maximum length of a line. Equals a node's default limit on a body, so hardly any node would
/// accept a longer line.
pub const LINE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of chunks waiting to be sent.
const CHUNKS_MAX: usize = 4;
/// A chunk above this size takes no further line.
const CHUNK_BYTES_MAX: usize = 256 << 10;
const BUFFER_BYTES: usize = 64 << 10;

/// Consecutive lines of the input.
#[derive(Debug, Default)]
pub struct LineChunk {
    pub lines: Vec<TaskLine>,
    pub wrong: Vec<WrongLine>,
    /// Size of `lines` in bytes.
    pub bytes: usize,
    /// Number of the last line in the chunk. Empty lines count, too.
    pub last_number: u64,
}

impl LineChunk {
    /// Returns the number of lines that are not empty.
    pub fn line_count(&self) -> usize {
        self.lines.len() + self.wrong.len()
    }

    pub fn append(&mut self, mut next: Self) {
        self.lines.append(&mut next.lines);
        self.wrong.append(&mut next.wrong);
        self.bytes += next.bytes;
        self.last_number = next.last_number;
    }
}

/// Parameters of the reader.
#[derive(Clone, Debug)]
pub struct Reading {
    pub naming: Naming,
    /// Lines before this one are skipped.
    pub from_line: u64,
    /// Maximum number of lines in a chunk.
    pub chunk_lines_max: usize,
}

/// The chunks of the input, in order. A read error is the last item.
#[derive(Debug)]
pub struct Input {
    pub chunks: mpsc::Receiver<io::Result<LineChunk>>,
    /// Number of bytes read so far.
    pub bytes_read: Arc<AtomicU64>,
}

impl Input {
    /// Starts a thread that reads `source`.
    ///
    /// # Errors
    /// Returns an error when the system cannot start a thread.
    pub fn start(source: impl Read + Send + 'static, reading: Reading) -> io::Result<Self> {
        let (sender, chunks) = mpsc::channel(CHUNKS_MAX);
        let bytes_read = Arc::new(AtomicU64::new(0));
        let lines = LineReader::new(source, bytes_read.clone());
        // Nobody joins the thread. The thread ends with the input, the channel, or the process.
        std::thread::Builder::new()
            .name("input".to_owned())
            .spawn(move || read_all(lines, &reading, &sender))?;
        Ok(Self { chunks, bytes_read })
    }
}

fn read_all<R: Read>(
    mut lines: LineReader<R>,
    reading: &Reading,
    sender: &mpsc::Sender<io::Result<LineChunk>>,
) {
    let mut chunk = LineChunk::default();
    loop {
        let more = lines.advance();
        if let Ok(true) = more {
            take_in(&mut chunk, &lines, reading);
        }
        let is_full =
            chunk.line_count() >= reading.chunk_lines_max || chunk.bytes >= CHUNK_BYTES_MAX;
        // The next read may block, so the lines read so far go out first.
        let is_due = is_full || lines.is_drained() || !matches!(more, Ok(true));
        if is_due
            && chunk.last_number > 0
            && sender.blocking_send(Ok(std::mem::take(&mut chunk))).is_err()
        {
            return;
        }
        match more {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                // The send fails only when the run has already ended.
                sender.blocking_send(Err(error)).ok();
                return;
            }
        }
    }
}

fn take_in<R>(chunk: &mut LineChunk, lines: &LineReader<R>, reading: &Reading) {
    let number = lines.number;
    if number < reading.from_line {
        return;
    }
    chunk.last_number = number;
    if lines.is_too_long {
        let detail = format!("longer than {} MiB", LINE_BYTES_MAX >> 20);
        chunk.wrong.push(WrongLine { number, kind: WrongKind::TooLong, detail });
        return;
    }
    match reading.naming.line_of(number, &lines.line) {
        Ok(Some(line)) => {
            chunk.bytes += line.json.len();
            chunk.lines.push(line);
        }
        Ok(None) => {}
        Err(wrong) => chunk.wrong.push(wrong),
    }
}

/// Splits the input into lines of at most [`LINE_BYTES_MAX`]. Longer lines are dropped.
struct LineReader<R> {
    source: BufReader<R>,
    bytes_read: Arc<AtomicU64>,
    /// The current line, without its line break.
    line: Vec<u8>,
    is_too_long: bool,
    /// Number of the current line, from 1.
    number: u64,
}

impl<R: Read> LineReader<R> {
    fn new(source: R, bytes_read: Arc<AtomicU64>) -> Self {
        let source = BufReader::with_capacity(BUFFER_BYTES, source);
        Self { source, bytes_read, line: Vec::new(), is_too_long: false, number: 0 }
    }

    /// Returns true when the next line is not in the buffer yet.
    fn is_drained(&self) -> bool {
        self.source.buffer().is_empty()
    }

    /// Reads the next line. Returns false at the end of the input.
    fn advance(&mut self) -> io::Result<bool> {
        self.line.clear();
        self.is_too_long = false;
        let mut has_begun = false;
        loop {
            let buffer = match self.source.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                filled => filled?,
            };
            if buffer.is_empty() {
                self.number += u64::from(has_begun);
                return Ok(has_begun);
            }
            has_begun = true;
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let part = &buffer[..end.unwrap_or(buffer.len())];
            self.is_too_long |= self.line.len() + part.len() > LINE_BYTES_MAX;
            if self.is_too_long {
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.source.consume(used);
            self.bytes_read.fetch_add(u64::try_from(used).unwrap_or(0), Ordering::Relaxed);
            if end.is_some() {
                self.number += 1;
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        source: impl Read + Send + 'static,
        from_line: u64,
    ) -> (Vec<LineChunk>, Option<io::Error>) {
        let reading = Reading { naming: Naming::new("r", None), from_line, chunk_lines_max: 3 };
        let mut input = Input::start(source, reading).unwrap();
        let mut chunks = Vec::new();
        while let Some(chunk) = input.chunks.blocking_recv() {
            match chunk {
                Ok(chunk) => chunks.push(chunk),
                Err(error) => return (chunks, Some(error)),
            }
        }
        (chunks, None)
    }

    fn numbers(chunks: &[LineChunk]) -> Vec<u64> {
        chunks.iter().flat_map(|chunk| &chunk.lines).map(|line| line.number).collect()
    }

    #[test]
    fn lines_are_numbered_as_an_editor_does_it() {
        let (chunks, error) = read(&b"{}\n\n{}\r\nwrong\n{}\n{}\n{}"[..], 1);
        assert!(error.is_none());
        assert_eq!(numbers(&chunks), [1, 3, 5, 6, 7]);
        assert_eq!(chunks[0].wrong[0].number, 4);
        assert_eq!(chunks.iter().map(|chunk| chunk.last_number).collect::<Vec<_>>(), [4, 7]);
        assert_eq!(numbers(&read(&b"{}\n{}\n{}\n"[..], 3).0), [3]);
        assert!(read(&b""[..], 1).0.is_empty());
    }

    #[test]
    fn of_a_line_that_is_too_long_only_its_number_is_kept() {
        let long = io::repeat(b'x').take(u64::try_from(LINE_BYTES_MAX).unwrap() + 1);
        let (chunks, _) = read(io::Cursor::new("{}\n").chain(long).chain(&b"\n{}"[..]), 1);
        assert_eq!(numbers(&chunks), [1, 3]);
        let wrong: Vec<&WrongLine> = chunks.iter().flat_map(|chunk| &chunk.wrong).collect();
        assert_eq!((wrong.len(), wrong[0].number, wrong[0].kind), (1, 2, WrongKind::TooLong));
    }

    #[test]
    fn what_was_read_before_an_error_comes_first() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _into: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("gone"))
            }
        }
        let (chunks, error) = read((&b"{}\n{\"a\""[..]).chain(Broken), 1);
        assert_eq!(numbers(&chunks), [1]);
        assert_eq!(error.unwrap().to_string(), "gone");
    }

    #[test]
    fn a_line_does_not_wait_for_the_next_one() {
        let (receiver, mut sender) = io::pipe().unwrap();
        let reading =
            Reading { naming: Naming::new("r", None), from_line: 1, chunk_lines_max: 1000 };
        let mut input = Input::start(receiver, reading).unwrap();
        io::Write::write_all(&mut sender, b"{}\n").unwrap();
        assert_eq!(input.chunks.blocking_recv().unwrap().unwrap().lines.len(), 1);
        drop(sender);
        assert!(input.chunks.blocking_recv().is_none());
    }
}
