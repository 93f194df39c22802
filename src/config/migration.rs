//! The parsed settings of a migration.

use std::time::Duration;

use super::args;
use super::host::Host;
use super::reader::{FlagRange, SettingProblem, SettingsReader};
use super::secret::Secret;
use super::settings;
use crate::domain::cluster::{LEAVES_MAX, is_leaf};
use crate::domain::{ClusterWishes, ShardCount};

/// The settings of a migration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigrationSettings {
    pub database_url: Secret,
    /// True when the connection may be readable by others.
    pub postgres_plaintext: bool,
    pub cluster: ClusterWishes,
}

const LEAF: FlagRange = FlagRange { flag: "--leaf", from: "1s", to: "1d" };
const HORIZON: FlagRange = FlagRange { flag: "--horizon", from: "1s", to: "300d" };
const WINDOW: FlagRange = FlagRange { flag: "--window", from: "20ms", to: "10s" };

/// Parses `args` on `host`. Returns the settings, or all problems.
pub(super) fn read(
    args: &args::Migrate,
    host: &Host<'_>,
) -> Result<MigrationSettings, Vec<SettingProblem>> {
    let mut reader = SettingsReader::default();
    let database_url = host.database_url(&args.database, &mut reader);
    let postgres_plaintext = settings::postgres_plaintext(&args.database, &mut reader);
    let cluster = ClusterWishes {
        shards: shards(args.cluster.shards.as_deref(), &mut reader),
        leaf: span(LEAF, args.cluster.leaf.as_deref(), &mut reader),
        horizon: span(HORIZON, args.cluster.horizon.as_deref(), &mut reader),
        window: span(WINDOW, args.cluster.window.as_deref(), &mut reader),
    };
    if cluster.leaf.is_some_and(|leaf| !is_leaf(leaf)) && reader.took(LEAF.flag) {
        reader.problem(LEAF.flag, "must be whole seconds and divide a day: 1m, 15m, 1h");
    }
    // When only one of the two is given, the stored value or the default of the other decides. The
    // migration checks the pair when it knows both.
    if let (Some(leaf), Some(horizon)) = (cluster.leaf, cluster.horizon)
        && reader.took(LEAF.flag)
        && reader.took(HORIZON.flag)
        && horizon > leaf.saturating_mul(LEAVES_MAX)
    {
        reader.problem(HORIZON.flag, format!("must be at most {LEAVES_MAX} leaves (--leaf)"));
    }
    reader.finish(MigrationSettings { database_url, postgres_plaintext, cluster })
}

fn shards(text: Option<&str>, reader: &mut SettingsReader) -> Option<ShardCount> {
    let text = text.map(str::trim).filter(|text| !text.is_empty())?;
    let count = text
        .parse::<u64>()
        .map_err(|_not_a_number| ())
        .and_then(|count| ShardCount::new(count).map_err(|_not_one| ()));
    if count.is_err() {
        reader.problem("--shards", format!("`{text}` is not a power of two from 1 to 4096"));
    }
    count.ok()
}

fn span(limits: FlagRange, text: Option<&str>, reader: &mut SettingsReader) -> Option<Duration> {
    let text = text.map(str::trim).filter(|text| !text.is_empty())?;
    Some(reader.whole_millis(limits, text))
}

#[cfg(test)]
pub(super) const ALL_LIMITS: [FlagRange; 3] = [LEAF, HORIZON, WINDOW];
