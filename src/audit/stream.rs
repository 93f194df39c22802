//! The queue of lines, and the thread that writes them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use az::SaturatingAs as _;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::file::{AuditFile, Unwritten};
use super::metrics::Metrics;
use crate::clock;
use crate::domain::{Monotonic, Throttle};
use crate::shutdown::{TaskFailure, Tasks};

/// A write that takes longer than this is stuck: no further change begins.
const STUCK_AFTER: Duration = Duration::from_secs(1);
/// How long an answer waits for its line to be written. The line stays in the queue afterwards.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Pause after a failed write.
const RETRY: Duration = Duration::from_millis(500);
/// Interval of the log lines about failed writes.
const LOG_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSettings {
    /// The file, or `-` for stdout.
    pub path: PathBuf,
    /// Lines may be lost rather than refuse changes.
    pub is_lossy: bool,
    /// Lines that may wait or be reserved.
    pub places_max: usize,
}

/// The entrance for lines. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AuditStream {
    shared: Arc<Shared>,
    is_lossy: bool,
    places_max: usize,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Line>,
    /// The places that are reserved, or whose lines wait or are being written.
    taken: usize,
    /// Since when lines are being written.
    writing_since: Option<Monotonic>,
    /// The last write has failed.
    is_failing: bool,
    is_ending: bool,
}

#[derive(Debug)]
struct Line {
    text: Vec<u8>,
    /// Told when the line is written.
    written: oneshot::Sender<()>,
}

/// The lines cannot be written, or too many wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoPlace;

/// A place in the queue, for one line.
#[derive(Debug)]
pub struct Place {
    stream: AuditStream,
    is_used: bool,
}

impl AuditStream {
    /// Opens the file and starts the thread that writes it. `first` is the first line.
    ///
    /// # Errors
    /// When the file cannot be opened, or the thread cannot be started.
    pub fn start(
        settings: &StreamSettings,
        first: Vec<u8>,
        metrics: Metrics,
        tasks: &Tasks,
    ) -> io::Result<Self> {
        let file = AuditFile::open(&settings.path)?;
        let stream = Self {
            shared: Arc::default(),
            is_lossy: settings.is_lossy,
            places_max: settings.places_max,
            metrics: metrics.clone(),
        };
        if let Ok(place) = stream.reserve() {
            drop(place.put(first));
        }
        let writer = Writer {
            shared: Arc::clone(&stream.shared),
            file,
            is_lossy: settings.is_lossy,
            metrics,
            failure_log: Throttle::new(LOG_EVERY),
        };
        let (end, ended) = oneshot::channel();
        thread::Builder::new().name("audit".to_owned()).spawn(move || {
            writer.run();
            if end.send(()).is_err() {
                tracing::trace!("the node ended before its audit trail");
            }
        })?;
        tasks.spawn("audit", watch(ended, tasks.clone()));
        Ok(stream)
    }

    /// Reserves the place of a line.
    ///
    /// # Errors
    /// When lines cannot be written now. Nothing needing a line may be done then.
    pub fn reserve(&self) -> Result<Place, NoPlace> {
        let mut queue = self.shared.queue.lock();
        let now = clock::monotonic();
        let is_stuck = queue.writing_since.is_some_and(|since| now.since(since) > STUCK_AFTER);
        if !self.is_lossy && (queue.is_failing || is_stuck || queue.taken >= self.places_max) {
            return Err(NoPlace);
        }
        queue.taken += 1;
        Ok(Place { stream: self.clone(), is_used: false })
    }

    /// Ends the stream with a last line, and waits a short time for it to be written.
    pub async fn end(&self, last: Vec<u8>) {
        let written = self.reserve().map(|place| place.put(last));
        {
            self.shared.queue.lock().is_ending = true;
            self.shared.changed.notify_all();
        }
        let is_written = match written {
            Ok(written) => wait(written).await,
            Err(NoPlace) => false,
        };
        if !is_written {
            let lines = self.shared.queue.lock().waiting.len();
            tracing::warn!(lines, "the audit trail ends without its last lines");
        }
    }
}

/// Waits until a line is written. Returns false when it was not within a short time.
async fn wait(written: oneshot::Receiver<()>) -> bool {
    tokio::time::timeout(WAIT_MAX, written).await.is_ok_and(|told| told.is_ok())
}

/// Fails when the thread has panicked. A thread told to end says so first.
async fn watch(ended: oneshot::Receiver<()>, tasks: Tasks) -> Result<(), TaskFailure> {
    tokio::select! {
        () = tasks.stopping.cancelled() => Ok(()),
        end = ended => {
            end.map_err(|_panicked| "the thread that writes the audit trail has panicked".into())
        }
    }
}

impl Place {
    /// Puts the line into the queue, without waiting.
    pub fn put(mut self, text: Vec<u8>) -> oneshot::Receiver<()> {
        let (written, told) = oneshot::channel();
        let mut queue = self.stream.shared.queue.lock();
        self.is_used = true;
        if self.stream.is_lossy && queue.waiting.len() >= self.stream.places_max {
            queue.taken -= 1;
            self.stream.metrics.dropped.inc();
        } else {
            queue.waiting.push(Line { text, written });
            self.stream.shared.changed.notify_all();
        }
        drop(queue);
        told
    }

    /// Puts the line into the queue, and waits until written. A line that takes long stays in the
    /// queue.
    pub async fn write(self, text: Vec<u8>) {
        if !wait(self.put(text)).await {
            tracing::debug!("a request is answered before its line of the audit trail is written");
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_used {
            self.stream.shared.queue.lock().taken -= 1;
        }
    }
}

/// The thread that writes.
struct Writer {
    shared: Arc<Shared>,
    file: AuditFile,
    is_lossy: bool,
    metrics: Metrics,
    failure_log: Throttle,
}

impl Writer {
    fn run(mut self) {
        let (mut lines, mut unwritten) = (Vec::new(), Unwritten::default());
        loop {
            {
                let mut queue = self.shared.queue.lock();
                let has_none = |queue: &mut Queue| queue.waiting.is_empty() && !queue.is_ending;
                self.shared.changed.wait_while(&mut queue, has_none);
                if queue.waiting.is_empty() {
                    return;
                }
                std::mem::swap(&mut lines, &mut queue.waiting);
                queue.writing_since = Some(clock::monotonic());
            }
            lines.iter().for_each(|line| unwritten.push(&line.text));
            let are_written = self.write(&mut unwritten, &mut lines);
            if are_written {
                unwritten.clear()
            } else {
                unwritten.give_up()
            }
            let count = lines.len().saturating_as::<u64>();
            let counter = if are_written { &self.metrics.lines } else { &self.metrics.dropped };
            counter.inc_by(count);
            let mut queue = self.shared.queue.lock();
            queue.writing_since = None;
            queue.is_failing = !are_written;
            queue.taken = queue.taken.saturating_sub(lines.len());
            drop(queue);
            for line in lines.drain(..).filter(|_line| are_written) {
                if line.written.send(()).is_err() {
                    tracing::trace!("nobody waits for the line any more");
                }
            }
        }
    }

    /// Writes lines, and tries again until written. Returns false when they are given up.
    fn write(&mut self, unwritten: &mut Unwritten, lines: &mut [Line]) -> bool {
        loop {
            let Err(error) = self.file.write(unwritten) else {
                if self.failure_log.reset() {
                    tracing::info!("the audit trail is written again");
                }
                return true;
            };
            self.metrics.failures.inc();
            if self.failure_log.lets_through(clock::monotonic()) {
                tracing::error!(%error, "write the audit trail; trying again");
            }
            if self.is_lossy {
                return false;
            }
            // Nobody waits for a line that cannot be written now.
            lines.iter_mut().for_each(|line| line.written = oneshot::channel().0);
            let mut queue = self.shared.queue.lock();
            queue.is_failing = true;
            queue.writing_since = None;
            if queue.is_ending {
                return false;
            }
            self.shared.changed.wait_for(&mut queue, RETRY);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::file::tests::Folder;
    use super::*;

    fn start(path: &Path, is_lossy: bool) -> (AuditStream, Tasks) {
        let settings = StreamSettings { path: path.to_owned(), is_lossy, places_max: 64 };
        let tasks = Tasks::default();
        let metrics = Metrics::default();
        (AuditStream::start(&settings, b"first".to_vec(), metrics, &tasks).unwrap(), tasks)
    }

    async fn until(is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
    }

    #[tokio::test]
    async fn a_line_is_in_the_file_before_its_request_is_answered() {
        let folder = Folder::temporary();
        let (stream, tasks) = start(&folder.path("audit"), false);
        stream.reserve().unwrap().write(b"second".to_vec()).await;
        let text = || fs::read_to_string(folder.path("audit")).unwrap();
        assert_eq!(text(), "first\nsecond\n");
        drop(stream.reserve().unwrap());
        stream.end(b"last".to_vec()).await;
        assert_eq!(text(), "first\nsecond\nlast\n");
        assert_eq!((stream.metrics.lines.get(), stream.shared.queue.lock().taken), (3, 0));
        assert!(tasks.stop(Duration::from_secs(5)).await && tasks.failure().is_none());
    }

    #[tokio::test]
    async fn a_full_disk_refuses_places_and_keeps_the_line_that_it_has_met() {
        let folder = Folder::temporary();
        let path = folder.path("audit");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let (stream, _tasks) = start(&path, false);
        // The first line has failed, or this one does.
        if let Ok(place) = stream.reserve() {
            place.write(b"second".to_vec()).await;
        }
        until(|| stream.reserve().is_err()).await;
        assert!(stream.metrics.failures.get() > 0);
        fs::remove_file(&path).unwrap();
        until(|| stream.reserve().is_ok()).await;
        assert!(fs::read_to_string(&path).unwrap().starts_with("first\n"));
        assert_eq!(stream.metrics.dropped.get(), 0);
        stream.end(b"last".to_vec()).await;
    }

    #[tokio::test]
    async fn a_lossy_stream_drops_lines_and_refuses_nothing() {
        let (stream, _tasks) = start(Path::new("/dev/full"), true);
        for _line in 0..3 {
            stream.reserve().unwrap().write(b"line".to_vec()).await;
        }
        assert_eq!(stream.metrics.dropped.get(), 4);
        assert_eq!(stream.shared.queue.lock().taken, 0);
    }

    #[tokio::test]
    async fn places_are_bounded_and_come_back() {
        let folder = Folder::temporary();
        let (stream, _tasks) = start(&folder.path("audit"), false);
        stream.reserve().unwrap().write(b"line".to_vec()).await;
        let places: Vec<Place> =
            (0..stream.places_max).map(|_| stream.reserve().unwrap()).collect();
        assert_eq!(stream.reserve().unwrap_err(), NoPlace);
        drop(places);
        assert!(stream.reserve().is_ok());
    }
}
