//! The command `payload-keys`, which encrypts stored records again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use crate::clock;
use crate::config::ResealCommand;
use crate::domain::Throttle;
use crate::error_chain::chain;
use crate::postgres::PostgresSettings;
use crate::postgres::cluster::payload_keys::KeyRegistry;
use crate::postgres::cluster::reseal::{KeyCounts, ResealError, Resealed, Resealer, SealedTable};
use crate::sealing::key_file;

/// Minimum time between two lines about the progress.
const LOG_EVERY: Duration = Duration::from_secs(2);

/// Runs a command for payload keys.
pub async fn run(command: ResealCommand) -> ExitCode {
    match carry_out(&command).await {
        Ok((text, is_whole)) => {
            let mut out = io::stdout().lock();
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            if written.is_ok() && is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(text) => {
            print_line(&text);
            ExitCode::FAILURE
        }
    }
}

/// Writes to stderr. The exit code remains when stderr is closed.
fn print_line(text: &str) {
    writeln!(io::stderr(), "punctual: {text}").ok();
}

/// Returns the counts as text, and whether all records that should have been replaced are.
async fn carry_out(command: &ResealCommand) -> Result<(String, bool), String> {
    let keys = key_file::load(&command.payload_keys)
        .map_err(|error| format!("--payload-key-file: {}", chain(&error)))?
        .set;
    if keys.current().is_none() && !command.decrypts && !command.is_dry_run {
        return Err("the file has no `current`; with --decrypt, the records are stored in the \
                    clear"
            .to_owned());
    }
    if keys.current().is_some() && command.decrypts {
        return Err("--decrypt needs a file without `current`".to_owned());
    }
    let settings = PostgresSettings::new(command.database_url.expose())
        .map_err(|text| format!("--database-url: {text}"))?;
    let current = keys.current();
    let mut resealer = Resealer::new(&settings, keys);
    let failed = |error: ResealError| chain(&error);
    if command.is_dry_run {
        let counts = resealer.counts().await.map_err(|error| chain(&error))?;
        return Ok((text_of(&counts, current), true));
    }
    resealer.check().await.map_err(failed)?;
    let mut is_whole = true;
    for table in SealedTable::ALL {
        let mut progress_log = Throttle::new(LOG_EVERY);
        progress_log.lets_through(clock::monotonic());
        let progress = |done: &Resealed| {
            if progress_log.lets_through(clock::monotonic()) {
                print_line(&format!("{}: {done}", table.name()));
            }
        };
        let done = resealer.reseal(table, progress).await.map_err(|error| chain(&error))?;
        print_line(&format!("{}: {done}", table.name()));
        is_whole &= done.without_key == 0 && done.damaged == 0;
    }
    let counts = resealer.counts().await.map_err(|error| chain(&error))?;
    let mut text = text_of(&counts, current);
    // While no key is current, a node of an older version must not find that none is in use.
    if let Some(current) = current {
        let used = KeyRegistry::new(&settings).used().await.map_err(|error| chain(&error))?;
        let by_key = by_key(&counts);
        let is_free = |id: &u32| *id != current && !by_key.contains_key(&Some(*id));
        let free: Vec<u32> = used.into_iter().filter(is_free).collect();
        resealer.note_unused(&free).await.map_err(|error| chain(&error))?;
        for id in free {
            writeln!(text, "no record has payload key {id}: remove it from the files of all nodes")
                .ok();
        }
    }
    Ok((text, is_whole))
}

fn by_key(counts: &KeyCounts) -> BTreeMap<Option<u32>, u64> {
    let mut by_key = BTreeMap::new();
    for ((_place, key), count) in counts {
        *by_key.entry(*key).or_default() += count;
    }
    by_key
}

/// One line for each table and key, and one for each key.
fn text_of(counts: &KeyCounts, current: Option<u32>) -> String {
    let shown = |key: Option<u32>| key.map_or_else(|| "none".to_owned(), |id| id.to_string());
    let mut text = format!("{:<16} {:>10} {:>12}\n", "table", "key", "records");
    for ((place, key), count) in counts {
        writeln!(text, "{place:<16} {:>10} {count:>12}", shown(*key)).ok();
    }
    for (key, count) in by_key(counts) {
        match key {
            Some(id) if current == Some(id) => {
                writeln!(text, "payload key {id}: {count} records, current").ok();
            }
            Some(id) => {
                writeln!(text, "payload key {id}: {count} records, still needed").ok();
            }
            None => {
                writeln!(text, "in the clear: {count} records").ok();
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_name_each_table_and_each_key() {
        let counts: KeyCounts = [
            (("task".to_owned(), Some(2)), 3),
            (("task_far".to_owned(), Some(1)), 1),
            (("task_far".to_owned(), Some(2)), 4),
            (("task_far".to_owned(), None), 5),
        ]
        .into();
        let text = text_of(&counts, Some(2));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["task_far", "none", "5"]);
        assert_eq!(
            lines[5..],
            [
                "in the clear: 5 records",
                "payload key 1: 1 records, still needed",
                "payload key 2: 7 records, current"
            ]
        );
    }
}
