//! The file with the payload keys.
//!
//! ```toml
//! current = 2
//!
//! [keys]
//! 1 = "base64 of 32 bytes"
//! 2 = "base64 of 32 bytes"
//! ```
//!
//! `current` names the key that seals new records. Without it, new records are stored as they are,
//! and sealed ones can still be read.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{KEY_LENGTH, KeySet, MasterKey};
use crate::private_file::{self, PrivateFile, PrivateFileError};

/// A file of 100 keys has about 6 KiB.
const BYTES_MAX: u64 = 64 << 10;

/// Why a file is refused. No message has a key.
#[derive(Debug, Error)]
pub enum KeyFileError {
    #[error(transparent)]
    Unread(#[from] PrivateFileError),
    #[error("{path}: {text}")]
    Wrong { path: String, text: String },
}

/// A file that was read without a problem.
#[derive(Debug)]
pub struct LoadedKeys {
    pub set: KeySet,
    pub warning: Option<String>,
}

/// Reads the file at `path`. Blocks.
///
/// # Errors
/// When the file cannot be read, when others may write it, or when its text is wrong.
pub fn load(path: &Path) -> Result<LoadedKeys, KeyFileError> {
    let PrivateFile { bytes, warning } = private_file::read(path, BYTES_MAX)?;
    let wrong = |text: String| KeyFileError::Wrong { path: path.display().to_string(), text };
    let text = str::from_utf8(&bytes).map_err(|_error| wrong("is not UTF-8".to_owned()))?;
    let set = parse(text).map_err(wrong)?;
    Ok(LoadedKeys { set, warning })
}

/// Reads the text of a file.
///
/// # Errors
/// A sentence about the first problem. It never holds a key.
pub fn parse(text: &str) -> Result<KeySet, String> {
    let table = DeTable::parse(text)
        // The message of the library shows the line, which may have a key.
        .map_err(|error| match error.span() {
            Some(span) => format!("line {}: it is not TOML", line_of(text, span.start)),
            None => "it is not TOML".to_owned(),
        })?;
    let table = table.get_ref();
    if let Some(name) = table.keys().find(|name| !["current", "keys"].contains(&&**name.get_ref()))
    {
        let line = line_of(text, name.span().start);
        return Err(format!("line {line}: only `current` and `[keys]` are known"));
    }
    let current = match table.get("current") {
        None => None,
        Some(value) => {
            let number = value.get_ref().as_integer().filter(|number| number.radix() == 10);
            let id = number.and_then(|number| id_of(number.as_str()));
            Some(id.ok_or_else(|| {
                let line = line_of(text, value.span().start);
                format!("line {line}: `current` is not the id of a key, 1 to 4294967295")
            })?)
        }
    };
    let entries = table.get("keys").and_then(|value| value.get_ref().as_table());
    let entries = entries.ok_or("the table `[keys]` is missing")?;
    let mut keys = BTreeMap::new();
    for (name, value) in entries {
        let line = line_of(text, name.span().start);
        let id = id_of(name.get_ref())
            .ok_or_else(|| format!("line {line}: the id of a key is a number, 1 to 4294967295"))?;
        let key = key_of(value)
            .ok_or_else(|| format!("line {line}: key {id} is not {KEY_LENGTH} bytes in base64"))?;
        if keys.values().any(|other| *other == key) {
            return Err(format!("line {line}: key {id} is there under another id, too"));
        }
        if keys.insert(id, key).is_some() {
            return Err(format!("line {line}: key {id} is there twice"));
        }
    }
    if keys.is_empty() {
        return Err("there is no key in `[keys]`".to_owned());
    }
    KeySet::new(current, keys).ok_or_else(|| {
        format!("`current` is {}, and that key is not in `[keys]`", current.unwrap_or_default())
    })
}

fn id_of(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id: &u32| *id > 0 && !text.starts_with(['0', '+']))
}

fn key_of(value: &Spanned<DeValue<'_>>) -> Option<MasterKey> {
    let bytes = STANDARD.decode(value.get_ref().as_str()?).ok()?;
    Some(MasterKey::new(bytes.try_into().ok()?))
}

fn line_of(text: &str, start: usize) -> usize {
    let before = text.as_bytes().get(..start).unwrap_or_default();
    before.iter().filter(|byte| **byte == b'\n').count().saturating_add(1)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const ONE: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    const TWO: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

    #[test]
    fn a_file_names_its_keys_and_the_current_one() {
        let set = parse(&format!("current = 20\n[keys]\n3 = \"{ONE}\"\n20 = \"{TWO}\"\n")).unwrap();
        assert_eq!((set.current(), set.ids().collect::<Vec<_>>()), (Some(20), vec![3, 20]));
        assert_eq!(set.key(3), Some(&MasterKey::new([1; KEY_LENGTH])));
        let set = parse(&format!("[keys]\n3 = \"{ONE}\"\n")).unwrap();
        assert!(!set.seals(), "nothing is sealed without `current`");
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_line_and_without_a_key() {
        for (text, wanted) in [
            (format!("current = 1\n[keys]\n1 = \"{ONE}"), "line 3: it is not TOML"),
            (format!("curent = 1\n[keys]\n1 = \"{ONE}\""), "line 1: only `current`"),
            (format!("current = 2\n[keys]\n1 = \"{ONE}\""), "that key is not in `[keys]`"),
            (format!("current = -1\n[keys]\n1 = \"{ONE}\""), "line 1: `current` is not"),
            (format!("current = \"1\"\n[keys]\n1 = \"{ONE}\""), "line 1: `current` is not"),
            (format!("current = 0x1\n[keys]\n1 = \"{ONE}\""), "line 1: `current` is not"),
            ("current = 1".to_owned(), "`[keys]` is missing"),
            ("[keys]".to_owned(), "there is no key"),
            (format!("[keys]\na = \"{ONE}\""), "line 2: the id of a key is a number"),
            (format!("[keys]\n0 = \"{ONE}\""), "line 2: the id of a key is a number"),
            (format!("[keys]\n01 = \"{ONE}\""), "line 2: the id of a key is a number"),
            (format!("[keys]\n1 = \"{}\"", &ONE[4..]), "line 2: key 1 is not 32 bytes"),
            ("[keys]\n1 = 5".to_owned(), "line 2: key 1 is not 32 bytes"),
            (format!("[keys]\n1 = \"{ONE}\"\n2 = \"{ONE}\""), "line 3: key 2 is there under"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
            assert!(!error.contains(&ONE[..16]), "{error}");
        }
    }

    #[test]
    fn a_file_that_others_may_write_is_refused_and_one_that_they_may_read_is_warned_of() {
        let name = format!("punctual-payload-keys-{:032x}", rand::random::<u128>());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, format!("current = 1\n[keys]\n1 = \"{ONE}\"")).unwrap();
        let load_with = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            load(&path)
        };
        assert!(load_with(0o600).unwrap().warning.is_none());
        assert!(load_with(0o644).unwrap().warning.is_some());
        assert!(matches!(
            load_with(0o660),
            Err(KeyFileError::Unread(PrivateFileError::Writable { .. }))
        ));
        fs::remove_file(&path).unwrap();
        assert!(matches!(
            load(&path),
            Err(KeyFileError::Unread(PrivateFileError::Unreadable { .. }))
        ));
    }
}
