//! The command `outbox`, which installs, checks and removes an outbox; and the outboxes that a node
//! drains.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use tokio::sync::watch;

use crate::access::PolicyHandle;
use crate::config::{OutboxAction, OutboxCommand, Settings};
use crate::error_chain::chain;
use crate::node::membership::Bulletin;
use crate::node::requests::service::Service;
use crate::node::shared::NodeShared;
use crate::outbox::OutboxMetrics;
use crate::outbox::drainer::{Drainer, DrainerParts};
use crate::postgres::PostgresSettings;
use crate::postgres::outbox::setup::{self, Grants, OutboxReport, ROWS_COUNTED_MAX, SetupError};
use crate::postgres::tasks::look_up::LookUp;
use crate::postgres::tasks::names::Names;
use crate::shutdown::{TaskFailure, Tasks};

/// The parts of a node that its outboxes need.
pub(super) struct OutboxParts<'a> {
    pub postgres: &'a PostgresSettings,
    pub metrics: &'a OutboxMetrics,
    pub shared: &'a Arc<NodeShared>,
    pub service: &'a Service,
    pub policy: &'a PolicyHandle,
    pub names: &'a Arc<Names>,
    pub look_up: &'a Arc<LookUp>,
    pub bulletin: watch::Receiver<Bulletin>,
}

/// Starts to drain the outboxes of the settings, each in a background task.
///
/// # Errors
/// When a URL is none. The settings were checked.
pub(super) fn start(
    settings: &Settings,
    parts: OutboxParts<'_>,
    tasks: &Tasks,
) -> Result<(), TaskFailure> {
    for outbox in &settings.outboxes {
        let database = PostgresSettings::new(outbox.database_url.expose())
            .map_err(|text| format!("--outbox {}: {text}", outbox.name))?;
        let drainer = Drainer::new(DrainerParts {
            name: outbox.name.clone(),
            database,
            postgres: parts.postgres.clone(),
            name_retention: settings.retention.names,
            shared: Arc::clone(parts.shared),
            service: parts.service.clone(),
            policy: parts.policy.clone(),
            names: Arc::clone(parts.names),
            look_up: Arc::clone(parts.look_up),
            bulletin: parts.bulletin.clone(),
            metrics: parts.metrics.of(&outbox.name),
            draining: tasks.draining.clone(),
        });
        tasks.spawn("outbox", drainer.run());
    }
    Ok(())
}

/// Runs a command for an outbox.
pub async fn run(command: OutboxCommand) -> ExitCode {
    let done = match PostgresSettings::new(command.database_url.expose()) {
        Ok(settings) => carry_out(&settings, command.action).await,
        Err(text) => Err(format!("--database-url: {text}")),
    };
    match done {
        Ok(text) => {
            let mut out = io::stdout().lock();
            let written = writeln!(out, "{text}").and_then(|()| out.flush());
            if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(text) => {
            // The exit code remains when stderr is closed.
            text.lines().try_for_each(|line| writeln!(io::stderr(), "punctual: {line}")).ok();
            ExitCode::FAILURE
        }
    }
}

async fn carry_out(settings: &PostgresSettings, action: OutboxAction) -> Result<String, String> {
    let place = settings.place();
    let failed = |error: SetupError| chain(&error);
    match action {
        OutboxAction::Install { submitters, drainers } => {
            let grants = Grants { submitters, drainers };
            let is_new = setup::install(settings, &grants).await.map_err(failed)?;
            let outcome = if is_new { "installed" } else { "was installed already" };
            Ok(format!("the outbox of {place} {outcome}"))
        }
        OutboxAction::Check => {
            let report = setup::check(settings).await.map_err(failed)?;
            let problems = report.problems();
            if problems.is_empty() { Ok(lines_of(&report)) } else { Err(problems.join("\n")) }
        }
        OutboxAction::Remove => {
            setup::remove(settings).await.map_err(failed)?;
            Ok(format!("the outbox of {place} is removed"))
        }
    }
}

fn lines_of(report: &OutboxReport) -> String {
    let count = |count: u64| match count {
        ROWS_COUNTED_MAX.. => format!("{ROWS_COUNTED_MAX} or more"),
        count => count.to_string(),
    };
    let oldest =
        report.oldest.map_or_else(|| "none".to_owned(), |age| format!("{} s", age.as_secs()));
    format!(
        "version  {}\nwaiting  {}\noldest   {oldest}\nrejected {}",
        report.version,
        count(report.waiting),
        count(report.rejected)
    )
}
