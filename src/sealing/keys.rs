//! Payload keys: a set of them, and the one that a node uses now.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};

/// Length of a payload key in bytes.
pub const KEY_LENGTH: usize = 32;
/// Length of the value that tells whether two nodes mean the same key by an id.
pub const CHECK_LENGTH: usize = 16;

/// Purposes of derived keys. They are stored with the records, so never change one.
const OF_RECORDS: &[u8] = b"punctual v1";
const OF_CHECKS: &[u8] = b"punctual v1 check";

/// A value that says which key an id stands for, and nothing about the key.
pub type KeyCheck = [u8; CHECK_LENGTH];

/// A payload key. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct MasterKey([u8; KEY_LENGTH]);

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

struct CheckType;

impl KeyType for CheckType {
    fn len(&self) -> usize {
        CHECK_LENGTH
    }
}

impl MasterKey {
    pub const fn new(bytes: [u8; KEY_LENGTH]) -> Self {
        Self(bytes)
    }

    /// Returns the key of one record. So the bound on random nonces under one key is never near.
    pub(super) fn of_record(&self, salt: &[u8]) -> Option<LessSafeKey> {
        let derived = Salt::new(HKDF_SHA256, salt).extract(&self.0);
        let info = [OF_RECORDS];
        let material = derived.expand(&info, &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(material)))
    }

    pub fn check(&self) -> KeyCheck {
        let derived = Salt::new(HKDF_SHA256, &[]).extract(&self.0);
        let mut check = [0; CHECK_LENGTH];
        let info = [OF_CHECKS];
        // The length is that of the type, so neither step fails.
        derived.expand(&info, CheckType).and_then(|material| material.fill(&mut check)).ok();
        check
    }
}

/// The payload keys of a file. Empty without a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeySet {
    current: Option<u32>,
    /// True while nothing may be sealed, because nodes that cannot open it are running.
    is_held: bool,
    keys: BTreeMap<u32, MasterKey>,
}

impl KeySet {
    /// Makes a set. New records are sealed with `current`, if there is one. Returns `None` when the
    /// set lacks that key.
    pub fn new(current: Option<u32>, keys: BTreeMap<u32, MasterKey>) -> Option<Self> {
        current.is_none_or(|id| keys.contains_key(&id)).then_some(Self {
            current,
            is_held: false,
            keys,
        })
    }

    /// Returns the id of the key that seals new records. `None`: they are stored as they are.
    pub const fn current(&self) -> Option<u32> {
        self.current
    }

    /// Returns true when new records are sealed.
    pub const fn seals(&self) -> bool {
        self.current.is_some()
    }

    /// Returns this set, in a state in which it refuses to seal new records.
    #[must_use]
    pub fn held(self) -> Self {
        Self { is_held: true, ..self }
    }

    pub const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Returns true when records are sealed, and not refused. For rows that must be stored in any
    /// case: while a key is held, they are not sealed. No record of theirs was sealed before.
    pub const fn seals_now(&self) -> bool {
        self.seals() && !self.is_held
    }

    pub fn key(&self, id: u32) -> Option<&MasterKey> {
        self.keys.get(&id)
    }

    /// Returns the ids of the keys, each with the value that tells whether two nodes mean the same
    /// key by it.
    pub fn checks(&self) -> impl Iterator<Item = (u32, KeyCheck)> {
        self.keys.iter().map(|(id, key)| (*id, key.check()))
    }

    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.keys.keys().copied()
    }
}

/// The payload keys that a node uses now. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct PayloadKeys {
    set: Arc<ArcSwap<KeySet>>,
    lacking: Arc<ArcSwap<Vec<u32>>>,
}

impl PayloadKeys {
    pub fn new(set: KeySet) -> Self {
        Self { set: Arc::new(ArcSwap::from_pointee(set)), lacking: Arc::default() }
    }

    /// Returns the set that counts now. A statement asks once for all of its records.
    pub fn current(&self) -> Arc<KeySet> {
        self.set.load_full()
    }

    /// Replaces the set. Statements in progress keep theirs.
    pub fn replace(&self, set: KeySet) {
        self.set.store(Arc::new(set));
    }

    /// Returns the ids of keys that the cluster uses, and that this node lacks.
    pub fn lacking(&self) -> Arc<Vec<u32>> {
        self.lacking.load_full()
    }

    /// Notes which keys the cluster uses. Returns the ids of those that this node lacks.
    pub fn note_used(&self, used: &[u32]) -> Arc<Vec<u32>> {
        let set = self.current();
        let lacking = used.iter().copied().filter(|id| set.key(*id).is_none());
        let lacking: Arc<Vec<u32>> = Arc::new(lacking.collect());
        self.lacking.store(Arc::clone(&lacking));
        lacking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_tells_keys_apart_and_stays() {
        let check = MasterKey::new([7; KEY_LENGTH]).check();
        assert_eq!(check, MasterKey::new([7; KEY_LENGTH]).check());
        assert_ne!(check, MasterKey::new([8; KEY_LENGTH]).check());
        assert_ne!(check, [0; CHECK_LENGTH]);
    }

    #[test]
    fn no_key_is_printed() {
        let set = KeySet::new(Some(1), [(1, MasterKey::new([65; KEY_LENGTH]))].into()).unwrap();
        let keys = PayloadKeys::new(set);
        let shown = format!("{keys:?}");
        assert!(shown.contains("MasterKey(..)") && !shown.contains("65, 65"), "{shown}");
    }

    #[test]
    fn the_current_key_is_in_its_set() {
        let keys = || BTreeMap::from([(1, MasterKey::new([1; KEY_LENGTH]))]);
        assert!(KeySet::new(Some(2), keys()).is_none());
        assert!(KeySet::new(Some(1), keys()).is_some_and(|set| set.seals()));
        assert!(KeySet::new(None, keys()).is_some_and(|set| !set.seals()));
    }
}
