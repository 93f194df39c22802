//! The command `outbox`, which installs, checks and removes an outbox.

use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::config::{OutboxAction, OutboxCommand};
use crate::error_chain::chain;
use crate::postgres::PostgresSettings;
use crate::postgres::outbox::setup::{self, Grants, OutboxReport, ROWS_COUNTED_MAX, SetupError};

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
            let installed = setup::install(settings, &grants).await.map_err(failed)?;
            let outcome = if installed.is_new { "installed" } else { "was installed already" };
            // A superuser may install into the outbox of any role, and should see whose it is.
            let owner =
                installed.other_owner.map(|owner| format!("; it belongs to the role {owner}"));
            Ok(format!("the outbox of {place} {outcome}{}", owner.unwrap_or_default()))
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
        "version  {}\nowner    {}\nwaiting  {}\noldest   {oldest}\nrejected {}",
        report.version,
        report.owner,
        count(report.waiting),
        count(report.rejected)
    )
}
