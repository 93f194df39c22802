//! Stores results in a folder: one file for each scenario and contender, so an interrupted suite
//! can resume.

use std::fs;
use std::path::{Path, PathBuf};

use punctual::bench::results::report::BenchReport;
use punctual::shutdown::TaskFailure;

use crate::contender::Who;
use crate::plan::Size;

pub struct Results {
    folder: PathBuf,
}

impl Results {
    pub fn open(folder: &Path, size: Size) -> Result<Self, TaskFailure> {
        let folder = folder.join(size.name());
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    pub fn path(&self, cell: &str, who: Who) -> PathBuf {
        self.folder.join(format!("{cell}--{}.json", who.slug()))
    }

    pub fn load(&self, cell: &str, who: Who) -> Result<Option<BenchReport>, TaskFailure> {
        let path = self.path(cell, who);
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&fs::read_to_string(path)?)?))
    }

    pub fn store(&self, cell: &str, who: Who, report: &BenchReport) -> Result<(), TaskFailure> {
        Ok(fs::write(self.path(cell, who), serde_json::to_string_pretty(report)?)?)
    }
}

/// Formats a report in one line.
pub fn short(report: &BenchReport) -> String {
    let spans = report
        .spans
        .as_ref()
        .map(|spans| format!("{} {} ms, ", report.measured, spans.short()))
        .unwrap_or_default();
    let promises =
        if report.counts.are_clean() { String::new() } else { format!(", {:?}", report.counts) };
    let cost = if report.usage.is_empty() {
        String::new()
    } else {
        format!(", {:.1} us of CPU per task", report.us_per_task())
    };
    format!("{spans}{:.0}/s{cost}{promises}", report.rate)
}
