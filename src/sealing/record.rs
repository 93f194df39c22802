//! Seals and opens records.
//!
//! A sealed part is `0xE1 | id of the payload key | nonce | ciphertext | tag`, 33 bytes longer than
//! the part. The key of a record is derived from the payload key and from the low 64 bits of the
//! task's first id. The authenticated data are those bits, the topic, which part it is, and which
//! parts the record has. So a part opens in no other task, topic or column, and no part can be
//! taken away. The time in an id is left out, because it changes when a due time that has passed is
//! moved to the present.

use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use thiserror::Error;

use super::keys::KeySet;
use crate::domain::task::seal_mark::{MarkedHeaders, marked, split_terms};
use crate::domain::{SealMark, SealedParts, TaskId, Unopened};

/// The first byte of a sealed part. It is no sign that a part is sealed: see the mark.
const VERSION: u8 = 0xE1;
/// Length of version, id of the key, and nonce.
const HEAD: usize = 1 + 4 + NONCE_LEN;
/// Length of the tag.
const TAG: usize = 16;
/// The bytes that sealing adds to a part.
pub const OVERHEAD: usize = HEAD + TAG;

/// The owner of a record: its task, its schedule or its callback.
#[derive(Clone, Copy, Debug)]
pub enum RecordOwner<'a> {
    /// The first id of a task, and its topic.
    Task(TaskId, &'a str),
    /// The topic and the name of a schedule.
    Schedule(&'a str, &'a str),
    /// The topic and the URL of a callback. A writer in the table cannot send the headers to
    /// another service.
    Callback(&'a str, &'a str),
}

/// Key, payload and headers of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Columns<'a> {
    pub key: Option<&'a [u8]>,
    pub payload: Option<&'a [u8]>,
    pub headers: Option<&'a [u8]>,
}

/// Key, payload and headers, after sealing or opening.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnedColumns {
    pub key: Option<Vec<u8>>,
    pub payload: Option<Vec<u8>>,
    pub headers: Option<Vec<u8>>,
}

/// The result of reading a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenedRecord {
    /// The record was not sealed.
    Plain,
    Opened(OwnedColumns),
    Unopened(Unopened),
}

/// Why a key is held.
const HELD: &str = "nodes of an older version are running, which could not decrypt it; stop them, \
                    or remove `current` from the file with the payload keys";

#[derive(Debug, Error)]
#[error("cannot encrypt a record: {0}")]
pub struct SealError(&'static str);

/// The parts of a record, as they are authenticated.
#[derive(Clone, Copy)]
enum Part {
    Key,
    Payload,
    Headers,
}

impl Part {
    const fn code(self) -> u8 {
        match self {
            Self::Key => 1,
            Self::Payload => 2,
            Self::Headers => 3,
        }
    }
}

impl RecordOwner<'_> {
    /// Returns 8 bytes for a task, and more for the others.
    fn salt(&self) -> Vec<u8> {
        let of = |what: &[u8], topic: &str, name: &str| {
            [what, b"\0", topic.as_bytes(), b"\0", name.as_bytes()].concat()
        };
        match self {
            Self::Task(first, _topic) => first.low_bits().to_be_bytes().to_vec(),
            Self::Schedule(topic, name) => of(b"schedule", topic, name),
            Self::Callback(topic, url) => of(b"callback", topic, url),
        }
    }

    const fn topic(&self) -> &str {
        match self {
            Self::Task(_, topic) | Self::Schedule(topic, _) | Self::Callback(topic, _) => topic,
        }
    }

    fn associated_data(&self, part: Part, parts: SealedParts) -> Vec<u8> {
        [&self.salt(), [part.code(), parts.bits()].as_slice(), self.topic().as_bytes()].concat()
    }
}

impl<'a> Columns<'a> {
    pub const fn new(
        key: Option<&'a [u8]>,
        payload: Option<&'a [u8]>,
        headers: Option<&'a [u8]>,
    ) -> Self {
        Self { key, payload, headers }
    }

    /// Returns a copy.
    pub fn to_owned(&self) -> OwnedColumns {
        let copy = |part: Option<&[u8]>| part.map(<[u8]>::to_vec);
        OwnedColumns {
            key: copy(self.key),
            payload: copy(self.payload),
            headers: copy(self.headers),
        }
    }

    /// Returns true when the record is sealed.
    pub fn are_sealed(&self) -> bool {
        self.headers.and_then(marked).is_some()
    }
}

impl OwnedColumns {
    pub fn as_columns(&self) -> Columns<'_> {
        Columns::new(self.key.as_deref(), self.payload.as_deref(), self.headers.as_deref())
    }
}

impl KeySet {
    /// Seals a record with the current key. Returns `None` when no key is current, or when the
    /// record is sealed already, and so stays as it is.
    ///
    /// # Errors
    /// When the cipher refuses. Nothing must be stored then.
    pub fn seal(
        &self,
        owner: RecordOwner<'_>,
        plain: Columns<'_>,
    ) -> Result<Option<OwnedColumns>, SealError> {
        let Some(key_id) = self.current().filter(|_id| !plain.are_sealed()) else {
            return Ok(None);
        };
        if self.is_held() {
            return Err(SealError(HELD));
        }
        let master = self.key(key_id).ok_or(SealError("the key is missing"))?;
        let key = master.of_record(&owner.salt()).ok_or(SealError("no key can be derived"))?;
        let (terms, own) = split_terms(plain.headers.unwrap_or_default());
        let parts = SealedParts::new(plain.key.is_some(), plain.payload.is_some(), !own.is_empty());
        let seal = |part, bytes: &[u8]| {
            seal_part(&key, key_id, &owner.associated_data(part, parts), bytes)
        };
        let mark = SealMark { key_id, parts }.encode();
        Ok(Some(OwnedColumns {
            key: plain.key.map(|bytes| seal(Part::Key, bytes)).transpose()?,
            payload: plain.payload.map(|bytes| seal(Part::Payload, bytes)).transpose()?,
            headers: Some([terms, &mark, &seal(Part::Headers, own)?].concat()),
        }))
    }

    /// Opens a record, if it is sealed. The headers begin with the terms of the task, as those of a
    /// plain record do.
    pub fn open(&self, owner: RecordOwner<'_>, stored: Columns<'_>) -> OpenedRecord {
        let Some(found) = stored.headers.and_then(marked) else { return OpenedRecord::Plain };
        match self.open_marked(owner, stored, found) {
            Ok(opened) => OpenedRecord::Opened(opened),
            Err(why) => OpenedRecord::Unopened(why),
        }
    }

    fn open_marked(
        &self,
        owner: RecordOwner<'_>,
        stored: Columns<'_>,
        found: MarkedHeaders<'_>,
    ) -> Result<OwnedColumns, Unopened> {
        let MarkedHeaders { terms, mark, sealed } = found;
        let key = self.key_of(owner, mark)?;
        let parts = (mark.parts.has_key(), mark.parts.has_payload());
        if parts != (stored.key.is_some(), stored.payload.is_some()) {
            return Err(Unopened::Damaged);
        }
        let open = |part, bytes: &[u8]| {
            open_part(&key, mark.key_id, &owner.associated_data(part, mark.parts), bytes)
        };
        let own = open(Part::Headers, sealed)?;
        if own.is_empty() == mark.parts.has_headers() {
            return Err(Unopened::Damaged);
        }
        let headers = [terms, own.as_slice()].concat();
        Ok(OwnedColumns {
            key: stored.key.map(|bytes| open(Part::Key, bytes)).transpose()?,
            payload: stored.payload.map(|bytes| open(Part::Payload, bytes)).transpose()?,
            headers: Some(headers).filter(|headers| !headers.is_empty()),
        })
    }

    /// Opens the key of a record of which `head` is the beginning of the column `headers`, with the
    /// mark. A record that is not sealed has its key as it is.
    pub fn open_key(
        &self,
        owner: RecordOwner<'_>,
        head: &[u8],
        stored: Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Unopened> {
        let (Some(found), Some(bytes)) = (marked(head), &stored) else { return Ok(stored) };
        let key = self.key_of(owner, found.mark)?;
        let associated = owner.associated_data(Part::Key, found.mark.parts);
        open_part(&key, found.mark.key_id, &associated, bytes).map(Some)
    }

    fn key_of(&self, owner: RecordOwner<'_>, mark: SealMark) -> Result<LessSafeKey, Unopened> {
        let master = self.key(mark.key_id).ok_or(Unopened::NoKey(mark.key_id))?;
        master.of_record(&owner.salt()).ok_or(Unopened::Damaged)
    }
}

fn seal_part(
    key: &LessSafeKey,
    key_id: u32,
    associated: &[u8],
    plain: &[u8],
) -> Result<Vec<u8>, SealError> {
    let nonce: [u8; NONCE_LEN] = rand::random();
    let mut sealed = Vec::with_capacity(plain.len().saturating_add(OVERHEAD));
    sealed.push(VERSION);
    sealed.extend_from_slice(&key_id.to_be_bytes());
    sealed.extend_from_slice(&nonce);
    sealed.extend_from_slice(plain);
    let (_head, body) =
        sealed.split_at_mut_checked(HEAD).ok_or(SealError("a part is too short"))?;
    let tag = key
        .seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(associated),
            body,
        )
        .map_err(|_unspecified| SealError("a part is too long"))?;
    sealed.extend_from_slice(tag.as_ref());
    Ok(sealed)
}

fn open_part(
    key: &LessSafeKey,
    key_id: u32,
    associated: &[u8],
    sealed: &[u8],
) -> Result<Vec<u8>, Unopened> {
    let damaged = || Unopened::Damaged;
    let (head, body) = sealed.split_at_checked(HEAD).ok_or_else(damaged)?;
    let nonce = head
        .strip_prefix(&[VERSION])
        .and_then(|rest| rest.strip_prefix(&key_id.to_be_bytes()))
        .and_then(|nonce| Nonce::try_assume_unique_for_key(nonce).ok())
        .ok_or_else(damaged)?;
    let mut body = body.to_vec();
    let length = key
        .open_in_place(nonce, Aad::from(associated), &mut body)
        .map_err(|_unspecified| damaged())?
        .len();
    body.truncate(length);
    Ok(body)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::keys::{KEY_LENGTH, MasterKey};
    use super::*;
    use crate::domain::{Expiry, ExpiryTime, Headers, Shard, Timestamp};

    fn keys(current: u32) -> KeySet {
        let keys: BTreeMap<u32, MasterKey> = (1..=current)
            .map(|id| (id, MasterKey::new([id.to_be_bytes()[3]; KEY_LENGTH])))
            .collect();
        KeySet::new(Some(current), keys).unwrap()
    }

    fn id(second: i64, random: u64) -> TaskId {
        TaskId::new(Timestamp::from_millis(second * 1000), Shard::new(3), random)
    }

    fn sealed(owner: RecordOwner<'_>, plain: Columns<'_>) -> OwnedColumns {
        keys(1).seal(owner, plain).unwrap().unwrap()
    }

    fn opened(owner: RecordOwner<'_>, stored: &OwnedColumns) -> OpenedRecord {
        keys(2).open(owner, stored.as_columns())
    }

    const DAMAGED: OpenedRecord = OpenedRecord::Unopened(Unopened::Damaged);

    fn headers(with_expiry: bool, own: bool) -> Option<Vec<u8>> {
        let own = if own {
            Headers::new([("h", Some(b"header".as_slice()))]).unwrap()
        } else {
            Headers::default()
        };
        let all = if with_expiry {
            Expiry::new(ExpiryTime::At(Timestamp::from_millis(5))).in_front_of(&own)
        } else {
            own
        };
        all.as_column().map(<[u8]>::to_vec)
    }

    proptest! {
        #[test]
        fn a_record_is_opened_as_it_was_sealed(
            (key, payload) in any::<(Option<Vec<u8>>, Option<Vec<u8>>)>(),
            (with_expiry, own) in any::<(bool, bool)>(),
            random in any::<u64>(),
        ) {
            let headers = headers(with_expiry, own);
            let plain = Columns::new(key.as_deref(), payload.as_deref(), headers.as_deref());
            let stored = sealed(RecordOwner::Task(id(9, random), "t"), plain);
            for (part, was) in [(&stored.key, &key), (&stored.payload, &payload)] {
                prop_assert_eq!(
                    part.as_ref().map(Vec::len),
                    was.as_ref().map(|was| was.len() + OVERHEAD)
                );
            }
            // A past due time is moved to the present when the task is stored.
            let moved = id(9, random).due_at_least(Timestamp::from_millis(99_000));
            let wanted = OpenedRecord::Opened(OwnedColumns { key, payload, headers });
            prop_assert_eq!(opened(RecordOwner::Task(moved, "t"), &stored), wanted);
        }

        #[test]
        fn a_changed_byte_is_noticed(place: prop::sample::Index, flip in 1_u8..) {
            let plain = Columns::new(Some(b"key"), Some(b"payload"), None);
            let owner = RecordOwner::Task(id(9, 1), "t");
            let mut stored = sealed(owner, plain);
            let payload = stored.payload.as_mut().unwrap();
            let place = place.index(payload.len());
            payload[place] ^= flip;
            prop_assert_eq!(opened(owner, &stored), DAMAGED);
        }
    }

    #[test]
    fn a_part_opens_in_no_other_task_topic_column_or_record() {
        let (key, payload) = (Some(b"secret".as_slice()), Some(b"secret".as_slice()));
        let plain = Columns::new(key, payload, None);
        let owner = RecordOwner::Task(id(9, 1), "t");
        let stored = sealed(owner, plain);
        assert!(matches!(opened(owner, &stored), OpenedRecord::Opened(_)));
        for other in [
            RecordOwner::Task(id(9, 2), "t"),
            RecordOwner::Task(id(9, 1), "u"),
            RecordOwner::Schedule("t", "n"),
            RecordOwner::Callback("t", "n"),
        ] {
            assert_eq!(opened(other, &stored), DAMAGED, "{other:?}");
        }
        let swapped = OwnedColumns {
            key: stored.payload.clone(),
            payload: stored.key.clone(),
            ..stored.clone()
        };
        assert_eq!(opened(owner, &swapped), DAMAGED);
        let other = sealed(RecordOwner::Task(id(9, 2), "t"), plain);
        let mixed = OwnedColumns { payload: other.payload, ..stored.clone() };
        assert_eq!(opened(owner, &mixed), DAMAGED);
        // Without its payload the record would be a tombstone.
        let tombstone = OwnedColumns { payload: None, ..stored.clone() };
        assert_eq!(opened(owner, &tombstone), DAMAGED);
        let of_tombstone = sealed(owner, Columns::new(key, None, None));
        let mixed = OwnedColumns { headers: of_tombstone.headers, payload: None, ..stored };
        assert_eq!(opened(owner, &mixed), DAMAGED);
    }

    #[test]
    fn a_missing_key_is_told_apart_from_damage() {
        let owner = RecordOwner::Task(id(9, 1), "t");
        let stored = keys(3).seal(owner, Columns::new(None, Some(b"p"), None)).unwrap().unwrap();
        assert_eq!(opened(owner, &stored), OpenedRecord::Unopened(Unopened::NoKey(3)));
    }

    #[test]
    fn a_plain_record_stays_itself_whatever_its_first_byte() {
        let payload = [VERSION, 0, 0, 0, 1];
        let plain = Columns::new(None, Some(&payload), None);
        assert_eq!(keys(1).open(RecordOwner::Task(id(9, 1), "t"), plain), OpenedRecord::Plain);
    }

    #[test]
    fn nothing_is_sealed_twice_or_without_a_current_key() {
        let owner = RecordOwner::Schedule("t", "n");
        let plain = Columns::new(None, Some(b"p"), None);
        let stored = sealed(owner, plain);
        assert_eq!(keys(2).seal(owner, stored.as_columns()).unwrap(), None);
        assert_eq!(KeySet::default().seal(owner, plain).unwrap(), None);
    }

    #[test]
    fn a_held_key_seals_nothing_and_opens_what_there_is() {
        let owner = RecordOwner::Task(id(9, 1), "t");
        let plain = Columns::new(None, Some(b"p"), None);
        let stored = sealed(owner, plain);
        let held = keys(1).held();
        assert!(held.seals() && !held.seals_now());
        let told = held.seal(owner, plain).unwrap_err().to_string();
        assert!(told.contains("older version"), "{told}");
        assert!(matches!(held.open(owner, stored.as_columns()), OpenedRecord::Opened(_)));
    }

    #[test]
    fn a_mark_with_other_parts_opens_nothing() {
        let owner = RecordOwner::Task(id(9, 1), "t");
        let mut stored = sealed(owner, Columns::new(None, Some(b"p"), None));
        for bits in [0, 1, 4, 8, 255_u8] {
            // Behind two bytes of length, the name, and four bytes of length.
            stored.headers.as_mut().unwrap()[21] = bits;
            assert_eq!(opened(owner, &stored), DAMAGED, "{bits}");
        }
    }

    #[test]
    fn the_key_alone_is_opened_by_the_beginning_of_the_headers() {
        let headers = headers(true, true);
        let owner = RecordOwner::Task(id(9, 1), "t");
        let stored = sealed(owner, Columns::new(Some(b"key"), Some(b"p"), headers.as_deref()));
        let head = &stored.headers.as_ref().unwrap()[..62];
        let opened = keys(1).open_key(owner, head, stored.key.clone());
        assert_eq!(opened, Ok(Some(b"key".to_vec())));
        let other = RecordOwner::Task(id(9, 2), "t");
        assert_eq!(keys(1).open_key(other, head, stored.key), Err(Unopened::Damaged));
        assert_eq!(
            keys(1).open_key(owner, b"", Some(b"plain".to_vec())),
            Ok(Some(b"plain".to_vec()))
        );
    }
}
