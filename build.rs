//! Gives the program the commit of the build: `PUNCTUAL_COMMIT` when set (a build without a
//! repository), otherwise the answer of git, otherwise `unknown`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PUNCTUAL_COMMIT");
    // Only existing files are watched: cargo would treat a missing file as changed at every build.
    for name in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().map(str::to_owned).chain(git(&[
        "symbolic-ref",
        "-q",
        "HEAD",
    ])) {
        if let Some(path) = git(&["rev-parse", "--git-path", &name])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let commit = given()
        .or_else(|| git(&["rev-parse", "--short", "HEAD"]))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=PUNCTUAL_COMMIT={commit}");
}

#[expect(clippy::disallowed_methods, reason = "a build script has no settings but its environment")]
fn given() -> Option<String> {
    std::env::var("PUNCTUAL_COMMIT").ok().filter(|commit| !commit.trim().is_empty())
}

/// Returns the answer of git, which is one line, or `None` without git or without a repository.
fn git(words: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!line.is_empty()).then_some(line)
}
