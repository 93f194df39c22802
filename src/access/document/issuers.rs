//! Entries for issuers of JSON Web Tokens.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toml::de::DeTable;

use super::limits;
use super::reader::{Reader, Value};
use super::roles::{GRANTS, Roles};
use crate::access::credential::jwt::issuer::{ClaimMap, ClaimTest, Issuer};
use crate::access::credential::jwt::keys::Algorithm;
use crate::access::credential::jwt::slot::{KeySlot, KeySource, KeyUrl};
use crate::access::metrics::principals::PrincipalCounts;
use crate::domain::time::duration;

const NAME_BYTES_MAX: usize = 32;
const MAX_AGE: Duration = Duration::from_hours(24);
const MAX_AGE_MAX: Duration = Duration::from_hours(366 * 24);
/// Without `algorithms`.
const ALGORITHMS: [Algorithm; 2] = [Algorithm::Es256, Algorithm::Rs256];

const KEYS: [&str; 12] = [
    "name",
    "issuer",
    "audience",
    "jwks_file",
    "jwks_url",
    "ca_file",
    "bearer_token_file",
    "algorithms",
    "principal_claim",
    "max_age",
    "map",
    "limits",
];

/// Reads the entries of `[[jwt]]`, each with its place.
pub fn read(
    reader: &mut Reader<'_>,
    value: Option<&Value<'_>>,
    roles: &mut Roles,
) -> Vec<(Issuer, Range<usize>)> {
    let mut issuers = Vec::new();
    let mut taken = BTreeSet::new();
    for item in reader.items(value, "jwt") {
        let Some(table) = reader.table(item, "an entry of `jwt`") else { continue };
        reader.known_keys(table, &KEYS);
        let name = reader.text(table, "name", item);
        let issuer = reader.text(table, "issuer", item);
        for (key, given) in [("name", &name), ("issuer", &issuer)] {
            let Some((text, at)) = given else { continue };
            if !taken.insert((key, text.clone())) {
                reader.problem(at, format!("another [[jwt]] has this `{key}`"));
            }
        }
        if let Some((name, at)) = &name
            && !is_name(name)
        {
            reader.problem(
                at,
                format!("{name:?} is not a valid name; use 1 to 32 of a-z, 0-9 and -"),
            );
        }
        let audience = reader.text(table, "audience", item);
        if let Some((_, at)) = audience.as_ref().filter(|(audience, _)| audience.is_empty()) {
            reader.problem(at, "`audience` is empty");
        }
        let keys = source(reader, table, item);
        let algorithms = algorithms(reader, table);
        let principal_claim = reader.optional_text(table, "principal_claim");
        let max_age = max_age(reader, table);
        let limits = limits::read(reader, table);
        let maps = maps(reader, table, roles);
        if maps.is_empty() {
            reader.warning(&item.span(), "an issuer without a `map` gives no rights to anybody");
        }
        let (Some((name, _)), Some((issuer, _)), Some((audience, _)), Some(keys)) =
            (name, issuer, audience, keys)
        else {
            continue;
        };
        let principal_claim = principal_claim.map_or_else(|| "sub".to_owned(), |(claim, _)| claim);
        let keys = Arc::new(KeySlot::new(keys));
        let issuer = Issuer {
            name,
            issuer,
            audience,
            algorithms,
            principal_claim,
            max_age,
            maps,
            limits,
            counts: PrincipalCounts::default(),
            keys,
        };
        issuers.push((issuer, item.span()));
    }
    issuers
}

fn is_name(name: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_legal)
}

fn source(reader: &mut Reader<'_>, table: &DeTable<'_>, place: &Value<'_>) -> Option<KeySource> {
    let [file, url, ca_file, bearer_token_file] =
        ["jwks_file", "jwks_url", "ca_file", "bearer_token_file"]
            .map(|key| reader.optional_text(table, key));
    match (file, url) {
        (Some((file, _)), None) => {
            for (key, given) in [("ca_file", &ca_file), ("bearer_token_file", &bearer_token_file)] {
                if let Some((_, at)) = given {
                    reader.problem(at, format!("`{key}` goes with `jwks_url`"));
                }
            }
            Some(KeySource::File(PathBuf::from(file)))
        }
        (None, Some((url, at))) => {
            if !is_https(&url) {
                let text = "`jwks_url` must be an https:// URL with a host and without a user";
                reader.problem(&at, text);
            }
            let path = |given: Option<(String, _)>| given.map(|(path, _)| PathBuf::from(path));
            let (ca_file, bearer_token_file) = (path(ca_file), path(bearer_token_file));
            Some(KeySource::Url(KeyUrl { url, ca_file, bearer_token_file }))
        }
        _ => {
            reader.problem(&place.span(), "an issuer has either `jwks_file` or `jwks_url`");
            None
        }
    }
}

fn is_https(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("https://") else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    !host.is_empty() && !host.contains('@') && url.bytes().all(|byte| byte.is_ascii_graphic())
}

fn algorithms(reader: &mut Reader<'_>, table: &DeTable<'_>) -> Vec<Algorithm> {
    let Some(value) = table.get("algorithms") else { return ALGORITHMS.to_vec() };
    let mut algorithms = Vec::new();
    for (name, at) in reader.texts(Some(value), "algorithms") {
        match Algorithm::new(&name) {
            Some(algorithm) => algorithms.push(algorithm),
            None => {
                let known = Algorithm::ALL.map(Algorithm::name).join(", ");
                reader.problem(&at, format!("{name:?} is not a known algorithm; use {known}"));
            }
        }
    }
    if algorithms.is_empty() && value.get_ref().as_array().is_some_and(|array| array.is_empty()) {
        reader.problem(&value.span(), "`algorithms` is empty");
    }
    algorithms
}

fn max_age(reader: &mut Reader<'_>, table: &DeTable<'_>) -> Duration {
    let Some((text, at)) = reader.optional_text(table, "max_age") else { return MAX_AGE };
    let span = duration::parse(&text);
    match span {
        Ok(span) if (Duration::from_secs(1)..=MAX_AGE_MAX).contains(&span) => span,
        Ok(_) => {
            reader.problem(&at, "`max_age` takes 1s to 366d");
            MAX_AGE
        }
        Err(text) => {
            reader.problem(&at, format!("`max_age`: {text}"));
            MAX_AGE
        }
    }
}

fn maps(reader: &mut Reader<'_>, table: &DeTable<'_>, roles: &mut Roles) -> Vec<ClaimMap> {
    let mut maps = Vec::new();
    for item in reader.items(table.get("map"), "map") {
        let Some(map) = reader.table(item, "an entry of `map`") else { continue };
        reader.known_keys(map, &[&["claim", "equals", "contains"], &GRANTS[..]].concat());
        let claim = reader.text(map, "claim", item);
        let [equals, contains] = ["equals", "contains"].map(|key| reader.optional_text(map, key));
        let test = match (equals, contains) {
            (Some((value, _)), None) => Some(ClaimTest::Equals(value)),
            (None, Some((value, _))) => Some(ClaimTest::Contains(value)),
            _ => {
                reader.problem(&item.span(), "a `map` has either `equals` or `contains`");
                None
            }
        };
        let grants = roles.grants(reader, map);
        if grants.is_nothing() {
            reader.warning(&item.span(), "a `map` gives no rights");
        }
        if let (Some((claim, _)), Some(test)) = (claim, test) {
            maps.push(ClaimMap { claim, test, grants });
        }
    }
    maps
}
