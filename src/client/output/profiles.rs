//! Profiles for people and scripts.

use serde_json::{Value, json};

use super::table::Table;
use crate::client::access::profile::{Profile, Profiles};
use crate::client::task::printable;

/// Lists profiles as a table.
pub fn listed(all: &Profiles) -> String {
    let rows: Vec<[String; 4]> = all
        .profiles
        .iter()
        .map(|(name, profile)| {
            let mark = if all.default.as_ref() == Some(name) { "*" } else { "" };
            [mark.to_owned(), name.clone(), profile.url.clone(), token_file(profile)]
        })
        .collect();
    if rows.is_empty() {
        return format!("{} has no profiles", all.path.display());
    }
    Table::new(["", "NAME", "URL", "TOKEN FILE"]).rows(&rows)
}

/// Names the default profile with its URL.
pub fn chosen(all: &Profiles) -> String {
    let name = all.default.as_deref().unwrap_or_default();
    let url = all.profiles.get(name).map(|profile| profile.url.as_str());
    format!("{name}  {}", printable(url.unwrap_or_default()))
}

/// Lists profiles as a JSON document.
pub fn as_json(all: &Profiles) -> String {
    let profiles: Vec<Value> = all
        .profiles
        .iter()
        .map(|(name, profile)| {
            let token_file = profile.token_file.as_ref().map(|_file| token_file(profile));
            json!({ "name": name, "url": profile.url, "token_file": token_file })
        })
        .collect();
    json!({ "file": all.path, "default": all.default, "profiles": profiles }).to_string()
}

fn token_file(profile: &Profile) -> String {
    profile.token_file.as_ref().map(|file| file.display().to_string()).unwrap_or_default()
}
