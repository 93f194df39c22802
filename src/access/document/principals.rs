//! Principals that the file names, with their tokens.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use toml::de::DeTable;

use super::limits;
use super::reader::{Reader, Value};
use super::roles::{GRANTS, Roles};
use crate::access::credential::token::{TokenHash, TokenId};
use crate::access::metrics::principals::PrincipalCounts;
use crate::access::policy::TokenEntry;
use crate::access::principal::Principal;
use crate::domain::PrincipalName;

/// The longest name of a principal of the file, in bytes.
const NAME_BYTES_MAX: usize = 100;

/// The principals of a file in its order, and the tokens of all of them.
#[derive(Default, Debug)]
pub struct Principals {
    pub principals: Vec<Arc<Principal>>,
    pub tokens: HashMap<TokenId, TokenEntry>,
    hashes: BTreeSet<String>,
}

impl Principals {
    pub fn read(reader: &mut Reader<'_>, value: Option<&Value<'_>>, roles: &mut Roles) -> Self {
        let mut read = Self::default();
        let mut members = reader.members(value, "principals");
        members.sort_by_key(|(_name, value)| value.span().start);
        for (name, value) in members {
            let named = principal_name(&name)
                .map_err(|text| reader.problem(&value.span(), format!("{name:?}: {text}")));
            let Some(table) = reader.table(value, &format!("the principal {name:?}")) else {
                continue;
            };
            reader.known_keys(table, &[&GRANTS[..], &["tokens", "limits"]].concat());
            let grants = roles.grants(reader, table);
            if grants.is_nothing() {
                reader.warning(&value.span(), format!("the principal {name:?} has no rights"));
            }
            let limits = limits::read(reader, table);
            let Ok(name) = named else { continue };
            let rights = Arc::new(grants.rights());
            let counts = PrincipalCounts::default();
            let principal = Arc::new(Principal { name, rights, limits, counts });
            read.tokens(reader, (table, value), &principal);
            read.principals.push(principal);
        }
        read
    }

    fn tokens(
        &mut self,
        reader: &mut Reader<'_>,
        (table, place): (&DeTable<'_>, &Value<'_>),
        principal: &Arc<Principal>,
    ) {
        let items = reader.items(table.get("tokens"), "tokens");
        if items.is_empty() {
            let text = format!("the principal {:?} has no token", principal.name);
            reader.warning(&place.span(), text);
        }
        for item in items {
            let Some(token) = reader.table(item, "a token") else { continue };
            reader.known_keys(token, &["id", "sha256", "expires", "not_before"]);
            let id = reader.text(token, "id", item).and_then(|(text, at)| {
                let id = TokenId::new(&text);
                if id.is_none() {
                    reader.problem(
                        &at,
                        "`id` must have 8 of a-z and 0-9; this may be the token itself",
                    );
                }
                id.map(|id| (id, at))
            });
            let hash = reader.text(token, "sha256", item).and_then(|(text, at)| {
                let hash = TokenHash::new(&text);
                if hash.is_none() {
                    reader.problem(
                        &at,
                        "`sha256` must have 64 hexadecimal digits; this may be the token itself",
                    );
                }
                hash.map(|hash| (hash, at))
            });
            let not_before = reader.time(token, "not_before");
            let expires = reader.time(token, "expires");
            if let (Some(from), Some(to)) = (not_before, expires)
                && to <= from
            {
                reader.problem(&item.span(), "the token expires before it is valid");
            }
            let (Some((id, id_at)), Some((hash, hash_at))) = (id, hash) else { continue };
            if !self.hashes.insert(hash.to_string()) {
                reader.problem(&hash_at, "another token has this hash");
            }
            let principal = Arc::clone(principal);
            let entry = TokenEntry { principal, hash, not_before, expires };
            if self.tokens.insert(id, entry).is_some() {
                reader.problem(&id_at, format!("another token has the id {id}"));
            }
        }
    }
}

/// Checks the name of a principal of the file.
///
/// # Errors
/// When the name is not valid, or reserved.
pub fn principal_name(name: &str) -> Result<PrincipalName, String> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || "._@:/-".contains(c);
    if name.len() > NAME_BYTES_MAX || !name.chars().all(is_legal) {
        return Err("a principal's name has 1 to 100 of a-z A-Z 0-9 . _ @ / and -".to_owned());
    }
    let read = PrincipalName::new(name).map_err(|error| error.to_string())?;
    if read == PrincipalName::anonymous() {
        let text = "`anonymous` is reserved for callers without a credential; their rights go into \
                    [anonymous]";
        return Err(text.to_owned());
    }
    if name.contains(':') {
        return Err("names with `:` are reserved for other kinds of identities".to_owned());
    }
    Ok(read)
}
