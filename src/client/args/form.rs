//! The form of an answer: for people or for programs.

use clap::{Args, ValueEnum};

/// The flags that choose the form of an answer.
#[derive(Args, Clone, Default, Debug)]
pub struct OutputArgs {
    /// The form of the answer. table: text for people. json, for scripts: the node's answer as JSON
    /// on stdout, and errors as one JSON object on stderr.
    #[arg(long = "output", short = 'o', value_name = "FORM", default_value = "table")]
    form: OutputForm,
    /// The same as --output json.
    #[arg(long, conflicts_with = "form")]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum, Debug)]
enum OutputForm {
    #[default]
    Table,
    Json,
}

impl OutputArgs {
    /// Returns true if the answer is printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json || self.form == OutputForm::Json
    }
}
