//! A batch: the tasks of one claim, in one piece of memory.

pub mod outcome;
pub mod width_class;

use std::ops::Range;

use az::SaturatingAs as _;

use super::{BatchId, Expiry, NewTask, TaskId, Timestamp, TopicName, TrackedRow, Unopened};

/// The tasks of one claim, in the order of its arrays. The keys, payloads and headers of all tasks
/// share one buffer, as the answer of the claim brought them, so a task needs no allocation of its
/// own.
#[derive(Debug)]
pub struct Batch {
    pub id: BatchId,
    tasks: Vec<TaskEntry>,
    topics: Vec<TopicName>,
    buffer: Vec<u8>,
    /// The tasks whose records are still sealed, in order. Mostly empty.
    unopened: Vec<(usize, Unopened)>,
}

#[derive(Debug)]
struct TaskEntry {
    id: TaskId,
    first_id: TaskId,
    attempt: i16,
    topic: u16,
    key: Option<Range<u32>>,
    payload: Option<Range<u32>>,
    headers: Option<Range<u32>>,
    name: Option<Range<u32>>,
    tracking: Option<Range<u32>>,
    moved_to: Option<Timestamp>,
    /// Where the record goes: the dead topic for a verdict row that has one.
    sent_to: u16,
}

/// One task of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchTask<'a> {
    /// The id of the row that was claimed.
    pub id: TaskId,
    /// The id that the submitter knows: the same as `id`, unless this row is a follow-up.
    pub first_id: TaskId,
    /// The due time that a caller has moved the task to.
    pub moved_to: Option<Timestamp>,
    /// 1 for the first attempt.
    pub attempt: i16,
    /// Index into [`Batch::topics`].
    pub topic: u16,
    pub topic_name: &'a TopicName,
    pub key: Option<&'a [u8]>,
    pub payload: Option<&'a [u8]>,
    /// The column, see [`super::task::expiry::split`] and [`super::task::headers::decode`].
    pub headers: &'a [u8],
    pub name: Option<&'a [u8]>,
    /// Encoded, see [`super::TrackedRow`]. `None` for an untracked task.
    pub tracking: Option<&'a [u8]>,
}

impl BatchTask<'_> {
    /// Returns the tracking of the task. One that this version cannot read counts as none: the
    /// record has no headers of an attempt, and the task ends when it is published.
    pub fn tracked(&self) -> Option<TrackedRow> {
        TrackedRow::decode(self.tracking?).ok()
    }

    /// Returns the requested time: of the last move, else of the first id. A retry is due later.
    pub fn promised_at(&self) -> Timestamp {
        self.moved_to.unwrap_or_else(|| self.first_id.due_at())
    }

    /// Returns the expiry of the task, which a verdict row has no more: its record goes nowhere, or
    /// to a dead topic.
    pub fn expiry(&self) -> Option<Expiry> {
        let expiry = Expiry::of_column(self.headers)?;
        let is_verdict = self.tracking.is_some_and(TrackedRow::is_of_verdict);
        (!is_verdict).then_some(expiry)
    }

    pub fn bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.payload.map_or(0, <[u8]>::len) + self.headers.len()
    }
}

impl Batch {
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Returns the memory that the batch takes in bytes, including its index.
    pub fn bytes(&self) -> usize {
        self.buffer.len() + self.tasks.len() * size_of::<TaskEntry>()
    }

    /// Returns the same batch without the key, payload and headers of every task that `is_over`.
    pub fn without(&self, is_over: impl Fn(usize) -> bool) -> Self {
        let kept: usize = (0..self.len())
            .map(|index| if is_over(index) { 0 } else { self.task(index).bytes() })
            .sum();
        let names: usize = self
            .tasks()
            .map(|task| {
                [task.name, task.tracking].into_iter().flatten().map(<[u8]>::len).sum::<usize>()
            })
            .sum();
        let mut builder = BatchBuilder::new(self.id, self.len(), kept + names);
        builder.batch.topics.clone_from(&self.topics);
        builder.batch.unopened.clone_from(&self.unopened);
        for (index, entry) in self.tasks.iter().enumerate() {
            let task = self.task(index);
            let is_over = is_over(index);
            let [key, payload, headers] = [&entry.key, &entry.payload, &entry.headers]
                .map(|range| if is_over { None } else { builder.keep(self.slice(range.as_ref())) });
            let name = builder.keep(task.name);
            let tracking = builder.keep(task.tracking);
            let TaskEntry { id, first_id, attempt, topic, moved_to, sent_to, .. } = *entry;
            builder.batch.tasks.push(TaskEntry {
                id,
                first_id,
                attempt,
                topic,
                key,
                payload,
                headers,
                name,
                tracking,
                moved_to,
                sent_to,
            });
        }
        builder.build()
    }

    /// Returns the distinct topics of the batch, in the order of their first tasks.
    pub fn topics(&self) -> &[TopicName] {
        &self.topics
    }

    pub fn id_of(&self, index: usize) -> TaskId {
        self.tasks[index].id
    }

    pub fn due_at(&self, index: usize) -> Timestamp {
        self.tasks[index].id.due_at()
    }

    /// Returns the index of the topic to which a record goes. It is the topic of the task, except
    /// for a verdict row with a dead topic.
    pub fn topic_index(&self, index: usize) -> u16 {
        self.tasks[index].sent_to
    }

    /// Returns the dead topic of each verdict row that has one, and the topic of the task.
    pub fn verdict_topics(&self) -> impl Iterator<Item = (&TopicName, &TopicName)> {
        let verdicts = self.tasks.iter().filter(|task| task.sent_to != task.topic);
        let name = |topic: u16| &self.topics[usize::from(topic)];
        verdicts.map(move |task| (name(task.sent_to), name(task.topic)))
    }

    pub fn task(&self, index: usize) -> BatchTask<'_> {
        let entry = &self.tasks[index];
        BatchTask {
            id: entry.id,
            first_id: entry.first_id,
            moved_to: entry.moved_to,
            attempt: entry.attempt,
            topic: entry.topic,
            topic_name: &self.topics[usize::from(entry.topic)],
            key: self.slice(entry.key.as_ref()),
            payload: self.slice(entry.payload.as_ref()),
            headers: self.slice(entry.headers.as_ref()).unwrap_or(&[]),
            name: self.slice(entry.name.as_ref()),
            tracking: self.slice(entry.tracking.as_ref()),
        }
    }

    /// Returns why the record of a task is still sealed. Such a record must not be published.
    /// `None` for a readable record.
    pub fn unopened(&self, index: usize) -> Option<Unopened> {
        let place = self.unopened.binary_search_by_key(&index, |(index, _why)| *index).ok()?;
        self.unopened.get(place).map(|(_index, why)| *why)
    }

    pub fn tasks(&self) -> impl Iterator<Item = BatchTask<'_>> {
        (0..self.len()).map(|index| self.task(index))
    }

    fn slice(&self, range: Option<&Range<u32>>) -> Option<&[u8]> {
        range.map(|range| &self.buffer[range.start.saturating_as()..range.end.saturating_as()])
    }
}

/// Builds a [`Batch`] task by task, in the order of the claim's arrays.
#[derive(Debug)]
pub struct BatchBuilder {
    batch: Batch,
}

/// A task as passed to [`BatchBuilder::push`].
#[derive(Clone, Copy, Debug)]
pub struct TaskParts<'a> {
    pub id: TaskId,
    pub first_id: Option<TaskId>,
    pub attempt: Option<i16>,
    pub topic: &'a str,
    pub key: Option<&'a [u8]>,
    pub payload: Option<&'a [u8]>,
    pub headers: Option<&'a [u8]>,
    pub name: Option<&'a [u8]>,
    pub tracking: Option<&'a [u8]>,
    pub moved_to: Option<Timestamp>,
}

impl BatchBuilder {
    pub fn new(id: BatchId, task_count: usize, bytes: usize) -> Self {
        let batch = Batch {
            id,
            tasks: Vec::with_capacity(task_count),
            topics: Vec::new(),
            buffer: Vec::with_capacity(bytes),
            unopened: Vec::new(),
        };
        Self { batch }
    }

    /// Appends a task.
    ///
    /// # Panics
    /// When the batch exceeds 4 GiB or 65,534 topics. A claim is limited to 16 MiB and a few
    /// thousand tasks.
    pub fn push(&mut self, parts: TaskParts<'_>) {
        let topic = self.topic(parts.topic);
        let dead_topic = parts.tracking.and_then(TrackedRow::dead_topic_of_verdict);
        let entry = TaskEntry {
            id: parts.id,
            first_id: parts.first_id.unwrap_or(parts.id),
            attempt: parts.attempt.unwrap_or(1),
            topic,
            sent_to: dead_topic.map_or(topic, |name| self.topic(name)),
            key: self.keep(parts.key),
            payload: self.keep(parts.payload),
            headers: self.keep(parts.headers),
            name: self.keep(parts.name),
            tracking: self.keep(parts.tracking),
            moved_to: parts.moved_to,
        };
        self.batch.tasks.push(entry);
    }

    /// Appends a task whose record is still sealed. The columns stay as they are stored.
    pub fn push_unopened(&mut self, parts: TaskParts<'_>, why: Unopened) {
        self.batch.unopened.push((self.batch.tasks.len(), why));
        self.push(parts);
    }

    /// Builds the batch of a submit that is claimed on insert.
    pub fn of_new_tasks<'a>(
        id: BatchId,
        tasks: impl ExactSizeIterator<Item = &'a NewTask> + Clone,
    ) -> Batch {
        let bytes = tasks.clone().map(NewTask::bytes).sum();
        let mut builder = Self::new(id, tasks.len(), bytes);
        for task in tasks {
            let tracking = task.tracking.as_ref().map(|tracking| tracking.first_row().encode());
            builder.push(TaskParts {
                id: task.id,
                first_id: None,
                attempt: None,
                topic: task.record.topic.as_str(),
                key: task.record.key.as_deref(),
                payload: task.record.payload.as_deref(),
                headers: task.record.headers.as_column(),
                name: task.name.as_ref().map(|name| name.as_str().as_bytes()),
                tracking: tracking.as_deref(),
                moved_to: None,
            });
        }
        builder.build()
    }

    /// Returns the batch, with the tasks in the order of the pushes: the arrays of the execlog keep
    /// the order of the claim. An owner with another order sorts an index.
    pub fn build(self) -> Batch {
        self.batch
    }

    fn topic(&mut self, name: &str) -> u16 {
        // Neighbouring tasks mostly share their topic, so the topic of the last task is compared
        // first.
        let last = self.batch.tasks.last().map(|entry| usize::from(entry.topic));
        let known = last.filter(|&last| self.batch.topics[last].as_str() == name);
        let position =
            known.or_else(|| self.batch.topics.iter().position(|topic| topic.as_str() == name));
        let position = position.unwrap_or_else(|| {
            self.batch.topics.push(TopicName::stored(name));
            self.batch.topics.len() - 1
        });
        assert!(position < usize::from(u16::MAX), "a batch has at most 65534 topics");
        position.saturating_as::<u16>()
    }

    fn keep(&mut self, bytes: Option<&[u8]>) -> Option<Range<u32>> {
        let bytes = bytes?;
        let start = self.offset();
        self.batch.buffer.extend_from_slice(bytes);
        Some(start..self.offset())
    }

    fn offset(&self) -> u32 {
        let length = self.batch.buffer.len();
        assert!(length < u32::MAX.saturating_as(), "a batch has less than 4 GiB");
        length.saturating_as::<u32>()
    }
}
