//! The composition root.

use crate::config::{MigrationSettings, Settings};
use crate::shutdown::Failure;

pub async fn serve(_settings: Settings) -> Result<(), Failure> {
    Err("not built yet".into())
}

pub async fn migrate(_settings: MigrationSettings) -> Result<(), Failure> {
    Err("not built yet".into())
}
