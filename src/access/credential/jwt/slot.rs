//! The current key set of an issuer, and when a set by URL is fetched again.
//!
//! A set is fetched every 5 minutes. A token with an unknown key asks for an earlier fetch, at most
//! once in 30 seconds for all callers: random key ids must not become requests to the issuer. When
//! fetches fail, the set from before holds for 24 hours. A token that cannot be judged for lack of
//! keys is not refused, but answered as unavailable, because its caller would throw a good token
//! away.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::keys::KeySet;
use crate::domain::Monotonic;

/// The interval of fetches while nothing asks for another one.
const REFRESH_EVERY: Duration = Duration::from_mins(5);
/// The shortest interval of fetches while there is a set.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// The interval of fetches while there is none.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// How long a set holds after it was fetched last.
const HOLDS: Duration = Duration::from_hours(24);

/// Where a key set comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeySource {
    /// A file, which is read together with the auth file.
    File(PathBuf),
    Url(KeyUrl),
}

/// An address of a key set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyUrl {
    pub url: String,
    /// The authorities for the server, in place of those of the machine.
    pub ca_file: Option<PathBuf>,
    /// A file with the token that the server asks for.
    pub bearer_token_file: Option<PathBuf>,
}

/// The keys of one issuer.
#[derive(Debug)]
pub struct KeySlot {
    pub source: KeySource,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    set: Option<Arc<KeySet>>,
    fetched_at: Option<Monotonic>,
    tried_at: Option<Monotonic>,
    has_failed: bool,
    /// A token had an unknown key since the last attempt.
    is_wanted: bool,
    /// The last attempt is long enough ago that a token may ask for another one.
    may_want: bool,
}

/// The meaning of a token with an unknown key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// The issuer was asked a moment ago and does not have the key.
    Final,
    /// The issuer will be asked, or could not be.
    Open,
}

impl KeySlot {
    pub fn new(source: KeySource) -> Self {
        Self { source, state: Mutex::default() }
    }

    /// Returns the address from which the set is fetched, if it is not in a file.
    pub fn url(&self) -> Option<&KeyUrl> {
        match &self.source {
            KeySource::File(_) => None,
            KeySource::Url(url) => Some(url),
        }
    }

    /// Returns the set that holds now.
    pub fn current(&self) -> Option<Arc<KeySet>> {
        self.state.lock().set.clone()
    }

    /// Takes the set of a file.
    pub fn take_file(&self, set: KeySet) {
        self.state.lock().set = Some(Arc::new(set));
    }

    /// Notes that a token has a key that is not in the set.
    pub fn miss(&self) -> Unknown {
        if self.url().is_none() {
            return Unknown::Final;
        }
        let mut state = self.state.lock();
        state.is_wanted |= state.may_want;
        if state.is_wanted || state.has_failed { Unknown::Open } else { Unknown::Final }
    }

    /// Returns true when the set is to be fetched at `now`. The attempt counts as begun.
    pub fn begin_if_due(&self, now: Monotonic) -> bool {
        let mut state = self.state.lock();
        let since = state.tried_at.map(|tried| now.since(tried));
        let interval = match (&state.set, state.is_wanted || state.has_failed) {
            (None, _) => RETRY_EVERY,
            (Some(_), true) => ASK_EVERY,
            (Some(_), false) => REFRESH_EVERY,
        };
        let is_due = since.is_none_or(|since| since >= interval);
        state.may_want = !is_due && since.is_some_and(|since| since >= ASK_EVERY);
        if is_due {
            state.tried_at = Some(now);
        }
        is_due
    }

    /// Takes the result of an attempt that ended at `now`. An equal set changes nothing, so
    /// verified tokens stay verified.
    pub fn end(&self, fetched: Option<KeySet>, now: Monotonic) {
        let mut state = self.state.lock();
        state.is_wanted = false;
        state.has_failed = fetched.is_none();
        match fetched {
            Some(set) => {
                if state.set.as_deref() != Some(&set) {
                    state.set = Some(Arc::new(set));
                }
                state.fetched_at = Some(now);
            }
            None if state.fetched_at.is_some_and(|fetched| now.since(fetched) >= HOLDS) => {
                state.set = None;
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::tests::{ec_jwk, set_of};
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_start(Duration::from_secs(seconds))
    }

    fn slot() -> KeySlot {
        let url = KeyUrl { url: "https://i/k".to_owned(), ca_file: None, bearer_token_file: None };
        KeySlot::new(KeySource::Url(url))
    }

    fn keys(kid: &str) -> KeySet {
        set_of(&[ec_jwk(kid).1])
    }

    /// Returns the seconds from `from` up to `to` at which a fetch begins, each with this result.
    fn fetches(
        slot: &KeySlot,
        (from, to): (u64, u64),
        result: impl Fn() -> Option<KeySet>,
        mut meanwhile: impl FnMut(),
    ) -> Vec<u64> {
        let mut begun = Vec::new();
        for second in from..to {
            if slot.begin_if_due(at(second)) {
                begun.push(second);
                slot.end(result(), at(second));
            }
            meanwhile();
        }
        begun
    }

    #[test]
    fn a_set_is_fetched_every_five_minutes() {
        let (slot, set) = (slot(), keys("a"));
        assert_eq!(fetches(&slot, (0, 700), || Some(set.clone()), || ()), [0, 300, 600]);
    }

    #[test]
    fn ten_thousand_unknown_keys_are_one_fetch_in_thirty_seconds() {
        let (slot, set) = (slot(), keys("a"));
        let flood = || {
            for _ in 0..200 {
                slot.miss();
            }
        };
        assert_eq!(fetches(&slot, (0, 95), || Some(set.clone()), flood), [0, 31, 62, 93]);
    }

    #[test]
    fn an_unknown_key_is_final_only_right_after_a_fetch() {
        let (slot, set) = (slot(), keys("a"));
        fetches(&slot, (0, 30), || Some(set.clone()), || ());
        assert_eq!(slot.miss(), Unknown::Final);
        fetches(&slot, (30, 31), || Some(set.clone()), || ());
        assert_eq!(slot.miss(), Unknown::Open, "the issuer will be asked");
        assert_eq!(fetches(&slot, (31, 32), || None, || ()), [31]);
        assert_eq!(slot.miss(), Unknown::Open, "the issuer could not be asked");
    }

    #[test]
    fn an_outage_of_the_issuer_leaves_the_keys_for_a_day() {
        let (slot, set) = (slot(), keys("a"));
        fetches(&slot, (0, 1), || Some(set.clone()), || ());
        let before = slot.current().unwrap();
        let day = 24 * 3600;
        fetches(&slot, (1, day), || None, || ());
        assert!(Arc::ptr_eq(&before, &slot.current().unwrap()));
        fetches(&slot, (day, day + 31), || None, || ());
        assert_eq!(slot.current(), None);
        assert_eq!(fetches(&slot, (day + 31, day + 42), || None, || ()).len(), 2, "each 5 s");
        fetches(&slot, (day + 42, day + 48), || Some(set.clone()), || ());
        assert_eq!(slot.current().as_deref(), Some(&set));
    }

    #[test]
    fn an_equal_set_is_the_same_set_and_another_one_takes_its_place() {
        let (slot, set) = (slot(), keys("a"));
        fetches(&slot, (0, 1), || Some(set.clone()), || ());
        let first = slot.current().unwrap();
        fetches(&slot, (300, 301), || Some(set.clone()), || ());
        assert!(Arc::ptr_eq(&first, &slot.current().unwrap()));
        fetches(&slot, (600, 601), || Some(keys("b")), || ());
        assert!(!Arc::ptr_eq(&first, &slot.current().unwrap()));
    }
}
