//! Sealed cursors: positions in lists that only this cluster can read and make.
//!
//! A position is the id of the last row looked at, perhaps of a topic that the caller may not see.
//! So a cursor is encrypted, and bound to list, filters and principal. All nodes have the same key,
//! so any node takes the cursor.

use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};

use super::sessions::Sessions;
use crate::api::problems::problem::Problem;
use crate::domain::{Cursor, List, PrincipalName, Selection, TopicName};

/// The purpose of the key, so the secret of the cluster can serve others as well.
const PURPOSE: &[u8] = b"punctual cursors 1";

/// Seals and opens cursors, once the node knows the secret of its cluster.
#[derive(Debug, Default)]
pub struct Cursors {
    key: OnceLock<LessSafeKey>,
    /// The sessions of the console, whose keys come from the same secret.
    pub sessions: Sessions,
}

/// What a cursor is bound to.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    pub list: List,
    pub selection: &'a Selection,
    pub principal: &'a PrincipalName,
}

impl Cursors {
    /// Takes the secret of the cluster. The first one counts.
    pub fn set_secret(&self, secret: &[u8]) {
        self.sessions.set_secret(secret);
        let derived = Salt::new(HKDF_SHA256, &[]).extract(secret);
        let info = [PURPOSE];
        let Ok(material) = derived.expand(&info, &AES_256_GCM) else { return };
        self.key.get_or_init(|| LessSafeKey::new(UnboundKey::from(material)));
    }

    /// Writes a cursor.
    ///
    /// # Errors
    /// When the node does not know the secret yet: it is starting, and has no lists either.
    pub fn seal(&self, cursor: Cursor, binding: Binding<'_>) -> Result<String, Problem> {
        let nonce: [u8; NONCE_LEN] = rand::random();
        let mut sealed = cursor.to_bytes(binding.list, binding.selection).to_vec();
        let unavailable = || Problem::unavailable("the node is starting");
        self.key
            .get()
            .and_then(|key| {
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.seal_in_place_append_tag(nonce, Aad::from(binding.bytes()), &mut sealed).ok()
            })
            .ok_or_else(unavailable)?;
        Ok(URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    /// Reads a cursor that [`Self::seal`] has written with the same binding, on any node.
    pub fn open(&self, text: &str, binding: Binding<'_>) -> Result<Cursor, Problem> {
        let key = self.key.get().ok_or_else(|| Problem::unavailable("the node is starting"))?;
        opened(key, text, binding).ok_or_else(|| {
            let detail = "this cursor is not valid for this list with these filters; repeat the \
                          filters of its page, or begin without a cursor";
            Problem::invalid("cursor", detail)
        })
    }
}

fn opened(key: &LessSafeKey, text: &str, binding: Binding<'_>) -> Option<Cursor> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let mut sealed = sealed.to_vec();
    let position = key.open_in_place(nonce, Aad::from(binding.bytes()), &mut sealed).ok()?;
    Cursor::of_bytes(position, binding.list, binding.selection)
}

impl Binding<'_> {
    /// Returns the binding as bytes. No two bindings have the same: the last part alone has no
    /// fixed length, and no name has a NUL.
    fn bytes(&self) -> Vec<u8> {
        let list: &[u8] = match self.list {
            List::Tasks => b"tasks",
            List::DeadLetters => b"dead ",
        };
        let ids = self.selection.ids();
        let topic = self.selection.topic.as_ref().map_or("", TopicName::as_str);
        let [from, to] = [ids.from.as_bytes(), ids.to.as_bytes()];
        [list, from, to, topic.as_bytes(), b"\0", self.principal.as_str().as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn cursors(secret: &[u8]) -> Cursors {
        let cursors = Cursors::default();
        cursors.set_secret(secret);
        cursors
    }

    #[test]
    fn a_cursor_is_good_on_every_node_for_its_own_list_and_caller_alone() {
        let [node, other_node] = [(); 2].map(|()| cursors(b"one"));
        let [ann, bob] = ["ann", "bob"].map(|name| PrincipalName::new(name).unwrap());
        let selection = Selection { topic: TopicName::new("a").ok(), ..Selection::default() };
        let binding = Binding { list: List::Tasks, selection: &selection, principal: &ann };
        let cursor = Cursor { after: Uuid::from_u128(0x1234_5678_9abc_def0) };
        let text = node.seal(cursor, binding).unwrap();
        assert_eq!(text.len(), 70);
        assert_ne!(node.seal(cursor, binding).unwrap(), text, "each seal has its own nonce");
        assert_eq!(other_node.open(&text, binding).unwrap(), cursor);
        for other in [
            Binding { list: List::DeadLetters, ..binding },
            Binding { selection: &Selection::default(), ..binding },
            Binding { principal: &bob, ..binding },
        ] {
            assert!(node.open(&text, other).is_err(), "{other:?}");
        }
        assert!(cursors(b"two").open(&text, binding).is_err());
        assert!(Cursors::default().open(&text, binding).is_err());
    }

    #[test]
    fn a_cursor_shows_no_id_and_cannot_be_altered() {
        let name = PrincipalName::anonymous();
        let selection = Selection::default();
        let binding = Binding { list: List::Tasks, selection: &selection, principal: &name };
        let (cursors, id) = (cursors(b"one"), Uuid::from_u128(u128::MAX / 3));
        let text = cursors.seal(Cursor { after: id }, binding).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        assert!(!bytes.windows(6).any(|part| id.as_bytes().starts_with(part)));
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 1;
            assert!(cursors.open(&URL_SAFE_NO_PAD.encode(damaged), binding).is_err());
        }
        for text in ["", "AAAA", "not base64!", &text[..60]] {
            assert!(cursors.open(text, binding).is_err(), "{text}");
        }
    }
}
